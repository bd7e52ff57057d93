"""Learning curves of scores: one picture per page, drawn from the results alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments import EXPERIMENTS
from benchmarks.thin import curve_key, full_history
from jaxrl.algorithms.presets import interval_text, shown

FRONT = "ppo-cartpole"
"""The score whose curve the README and the first page show. It has a separate picture."""
COLUMNS = 3
RESOLUTION = 84
"""Pixels per inch of a page's panels."""
MAX_WIDTH = 760
"""Largest width of a picture, in pixels."""
COLOURS = 8
"""Colours of a picture. With 8 it has a third of the size and looks the same."""

Result = Mapping[str, Any]


def read_scores(folder: Path) -> list[dict[str, Any]]:
    """Read the scores of a folder, in the order of the experiments."""
    order = [*EXPERIMENTS]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda result: order.index(result["name"]) if result["name"] in order else len(order))


def pages(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Map each picture's name to the scores that it shows: one picture per algorithm, and one for the front page."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(page_name(result["agent"]), []).append(result)
        if result["name"] == FRONT:
            found[FRONT] = [result]
    return found


def page_name(agent: str) -> str:
    """Return the name of an algorithm's picture, that of its page, by the algorithm's title."""
    return "".join(filter(str.isalnum, agent)).lower()


def headings(result: Result) -> tuple[str, str]:
    """Return the title and the subtitle of a score."""
    count, mean = len(result["seeds"]), result["mean"]
    title = f"{result['agent']} · {result['experiment']['env']} · {count} seed{'s' * (count > 1)}"
    score = f"{interval_text(mean, *result['interval'])} (mean and 95 % interval over seeds)" if count > 1 else shown(mean, mean)
    last = result["experiment"].get("last_episodes")
    kind = f"return of the last {result['episodes']} training episodes" if last else "greedy return at the end of training"
    if against := result["experiment"].get("against"):
        games = result["experiment"].get("draw_points") == 1
        kind = f"share of {'games not lost to' if games else 'points against'} {against} at the end of training"
    return title, f"{kind}: {score}"


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw the curves of scores, one panel each, as a PNG. Its description identifies the results."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    if [result["name"] for result in results] == [FRONT]:
        _draw_alone(results[0], path)
    else:
        _draw_panels(results, path)
    text = PngInfo()
    text.add_text("Description", identity(results))
    with Image.open(path) as picture:
        width, height = (min(1, MAX_WIDTH / picture.width) * side for side in picture.size)
        small = picture.convert("RGB").resize((round(width), round(height)), Image.Resampling.LANCZOS)
    small.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True, pnginfo=text)


def _draw_alone(result: Result, path: Path) -> None:
    from jaxrl.runtime.plots.draw import learning_curve

    title, subtitle = headings(result)
    learning_curve(full_history(result["history"]), path, title=title, subtitle=subtitle)


def _draw_panels(results: Sequence[Result], path: Path) -> None:
    from matplotlib.figure import Figure

    from jaxrl.runtime.plots.style import INK, save

    columns = min(COLUMNS, len(results))
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(2.9 * columns, 1.9 * rows + 0.2), dpi=RESOLUTION, layout="constrained")
    for place, result in enumerate(results):
        axes = figure.add_subplot(rows, columns, place + 1)
        _draw_panel(axes, result)
        axes.set_title(panel_title(result), loc="left", fontsize=8, color=INK)
    across, up = axis_labels(results)
    figure.supxlabel(across, fontsize=9, color=INK)
    figure.supylabel(up, fontsize=9, color=INK)
    save(figure, path)


def axis_labels(results: Sequence[Result]) -> tuple[str, str]:
    """Return what all panels show. What learns from a dataset has no episodes of training."""
    from_data = {bool(result["experiment"].get("data")) for result in results}
    if from_data == {True}:
        return "updates per seed", "greedy return"
    if from_data == {False}:
        return "environment steps per seed", "training return"
    return "environment steps, or updates from a dataset, per seed", "training or greedy return"


def panel_title(result: Result) -> str:
    """Return the name of a score and its mean with the interval."""
    mean = result["mean"]
    score = interval_text(mean, *result["interval"]) if len(result["seeds"]) > 1 else shown(mean, mean)
    return f"{result['name']}\n{score}, {len(result['seeds'])} seed{'s' * (len(result['seeds']) > 1)}"


def _draw_panel(axes: Any, result: Result) -> None:
    from jaxrl.runtime.plots.statistics import seed_interval
    from jaxrl.runtime.plots.style import LINE, PALE, draw_line, dress

    history = full_history(result["history"])
    steps, returns = history["env_steps"], history[curve_key(history)]
    if not returns.size:  # no episode ended
        return
    if returns.shape[1] > 1:
        axes.plot(steps, returns, color=PALE, linewidth=0.4)
        draw_line(axes, steps[:, 0], seed_interval(returns, metric="mean"), LINE)
    else:
        draw_line(axes, steps[:, 0], (returns[:, 0],), LINE)
    dress(axes, steps.max(), xlabel="", ylabel="")
    axes.tick_params(labelsize=7)


def identity(results: Sequence[Result]) -> str:
    """Identify a picture by the headings and the data of its results, as text that the picture holds."""
    data = hashlib.sha256(json.dumps([[*headings(result), result["history"]] for result in results]).encode()).hexdigest()[:16]
    return f"{', '.join(result['name'] for result in results)}; {data}"


def is_of(path: Path, results: Sequence[Result]) -> bool:
    """Return True if a picture was drawn from these results."""
    from PIL import Image

    if not path.exists():
        return False
    with Image.open(path) as image:
        return image.info.get("Description") == identity(results)


def draw_missing(scores: Path, pictures: Path) -> None:
    """Draw the pictures that are missing or out of date, and remove those that no page shows."""
    wanted = {pictures / f"{name}.png": of for name, of in pages(read_scores(scores)).items()}
    for path, results in wanted.items():
        if not is_of(path, results):
            pictures.mkdir(parents=True, exist_ok=True)
            draw(results, path)
    for path in set(pictures.glob("*.png")) - wanted.keys():
        path.unlink()

"""Comparison of DQN's switches: a table and a figure of the available scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.experiments import EXPERIMENTS
from benchmarks.markdown import table
from benchmarks.switches import PANELS
from jaxrl.algorithms.presets import interval_text, shown

FIGURE = Path("docs/images/switches.png")
TITLE = "DQN's switches"
MOST_SETTINGS = 5
"""Largest number of settings listed in a row of the table. Scores with more settings are presets, or similar."""
CAPTION = "greedy return at the end of training: mean, 95 % bootstrap interval, and each seed"

Compared = dict[str, dict[str, dict[str, Any]]]
"""Environment -> label -> contents of ``scores/NAME.json``."""


def read_compared(scores: Path) -> Compared:
    """Read the available scores of ``PANELS`` from a folder."""
    found = {
        env: {
            label: json.loads(path.read_text(encoding="utf-8"))
            for name, label in names.items()
            if (path := scores / f"{name}.json").exists()
        }
        for env, names in PANELS.items()
    }
    return {env: results for env, results in found.items() if results}


def comparison_table(compared: Compared, env: str) -> str:
    """Return the table of one environment's scores.

    Raises:
      ValueError: There are no scores.
    """
    if env not in compared:
        raise ValueError(f"no scores of {env} to compare; run python -m benchmarks scores")
    rows = []
    for label, result in compared[env].items():
        settings = EXPERIMENTS[result["name"]].settings  # a result may have those of jaxrl 0.2, which are written differently
        changed = ", ".join(f"`{name}={value!r}`" for name, value in settings.items()) if len(settings) <= MOST_SETTINGS else "–"
        worst = shown(min(result["scores"]), result["mean"])
        rows.append([label, interval_text(result["mean"], *result["interval"]), worst, f"`{result['name']}`", changed or "–"])
    return table(["", "mean return [95 %]", "worst seed", "score", "settings"], rows)


def numbers(compared: Compared) -> str:
    """Return the figure's data as text, which the figure stores."""
    shown = {
        env: {label: [result["scores"], result["interval"]] for label, result in results.items()}
        for env, results in compared.items()
    }
    return json.dumps(shown, ensure_ascii=True)


def is_of(figure: Path, compared: Compared) -> bool:
    """Return True if a figure was drawn from these scores."""
    from PIL import Image

    if not figure.exists():
        return False
    with Image.open(figure) as image:
        return image.info.get("Description") == numbers(compared)


def draw(compared: Compared, path: Path) -> None:
    """Draw a panel per environment: the first one at the left, the others stacked at the right."""
    from jaxrl.runtime.plots.style import INK, new_figure, set_title
    from jaxrl.runtime.system.disk import replacing

    first, *others = compared
    figure = new_figure(9.6, 0.9 + 0.3 * len(compared[first]))
    grid = figure.add_gridspec(max(1, len(others)), 2 if others else 1)
    _panel(figure.add_subplot(grid[:, 0]), first, compared[first])
    for place, env in enumerate(others):
        _panel(figure.add_subplot(grid[place, 1]), env, compared[env])
    set_title(figure, TITLE)
    figure.supxlabel(CAPTION, fontsize=9, color=INK)
    with replacing(path) as file:
        figure.savefig(file, format="png", metadata={"Description": numbers(compared)})


def _panel(axes: Any, env: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    from jaxrl.runtime.plots.style import GRID, INK, LINE, PALE

    for row, result in enumerate(results.values()):
        axes.plot(result["scores"], [row] * len(result["scores"]), "o", color=PALE, markersize=4, alpha=0.6, clip_on=False)
        axes.hlines(row, *result["interval"], color=LINE, linewidth=2.5)
        axes.plot(result["mean"], row, "D", color=LINE, markersize=5, clip_on=False)
    axes.set_yticks(range(len(results)), list(results))
    axes.set_ylim(len(results) - 0.5, -0.5)
    least, most = (pick(pick(result["scores"]) for result in results.values()) for pick in (min, max))
    left = 0 if least < 0.8 * most else 0.8 * most
    axes.set_xlim(left, most + 0.02 * (most - left))
    last = next(iter(results.values()))
    title = f"{env}, {last['total_steps'] / 1e6:.1f}M steps, {len(last['seeds'])} seeds"
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, length=0)
    for side in axes.spines.values():
        side.set_visible(False)

"""Learning curves of scores, drawn from their results alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.algorithms.presets import interval_text, shown

COLOURS = 128
"""Of a picture: a third of the size of one with all, and no difference to see."""


def headings(result: Mapping[str, Any]) -> tuple[str, str]:
    """Title and subtitle of a score's picture."""
    count, mean = len(result["seeds"]), result["mean"]
    title = f"{result['agent']} · {result['experiment']['env']} · {count} seed{'s' * (count > 1)}"
    score = f"{interval_text(mean, *result['interval'])} (mean and 95 % interval over seeds)" if count > 1 else shown(mean, mean)
    last = result["experiment"].get("last_episodes")
    kind = f"return of the last {result['episodes']} training episodes" if last else "greedy return at the end of training"
    return title, f"{kind}: {score}"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """The curve of ``NAME.json`` as a PNG, which says what it was drawn from."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    from jaxrl.runtime.plots.draw import learning_curve

    history = {key: np.array(values, float) for key, values in result["history"].items()}  # null is NaN
    title, subtitle = headings(result)
    learning_curve(history, path, title=title, subtitle=subtitle)
    text = PngInfo()
    text.add_text("Description", identity(result))
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True, pnginfo=text, dpi=picture.info["dpi"])


def identity(result: Mapping[str, Any]) -> str:
    """Identify a picture by its headings and its data, as text that the picture holds."""
    data = hashlib.sha256(json.dumps(result["history"]).encode()).hexdigest()[:16]
    return "; ".join((*headings(result), data)).encode("ascii", "backslashreplace").decode()


def is_of(path: Path, result: Mapping[str, Any]) -> bool:
    """Whether a picture was drawn from this result."""
    from PIL import Image

    if not path.exists():
        return False
    with Image.open(path) as image:
        return image.info.get("Description") == identity(result)


def draw_missing(scores: Path) -> None:
    """Draw the pictures in a folder of scores that are not of the results beside them."""
    for path in sorted(scores.glob("*.json")):
        result, picture = json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".png")
        if not is_of(picture, result):
            draw(result, picture)

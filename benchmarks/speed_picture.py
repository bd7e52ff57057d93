"""Picture of the documentation's first page: bars of the speed relative to Rejax, drawn from the results alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.numbers import paired, rates
from benchmarks.summary import README_CASES, newest

FIGURE = Path("docs/images/speed.png")
TITLE = "training speed beside Rejax"

Bar = tuple[str, float]
"""A case's title and the ratio of the rates."""


def bars(results: Iterable[Mapping[str, Any]]) -> list[Bar]:
    """Return a bar for each of the README's cases."""
    found = []
    for case in (case for result in newest(results) for case in result["cases"] if case["name"] in README_CASES):
        ours, theirs = rates(case["programs"]["jaxrl"]), rates(case["programs"]["rejax"])
        found.append((case["title"], round(median(paired(ours, theirs)), 3)))
    return found


def is_of(figure: Path, drawn: list[Bar]) -> bool:
    """Return True if a figure shows these bars."""
    from PIL import Image

    if not figure.exists():
        return False
    with Image.open(figure) as image:
        return image.info.get("Description") == json.dumps([*map(list, drawn)])


def draw(drawn: list[Bar], path: Path) -> None:
    """Draw a bar for each case, with a line at the ratio 1."""
    from jaxrl.runtime.plots.style import INK, LINE, new_figure
    from jaxrl.runtime.system.disk import replacing

    titles, ratios = zip(*drawn, strict=True)
    figure = new_figure(4.6, 3.0)
    axes = figure.add_subplot()
    axes.barh(range(len(drawn)), ratios, color=LINE, height=0.6)
    for row, ratio in enumerate(ratios):
        axes.text(ratio + 0.15, row, f"{ratio:.1f}×", va="center", fontsize=11, fontweight="bold", color=INK)
    axes.axvline(1, color=INK, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(drawn)), titles)
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlim(0, max(ratios) + 2)
    axes.set_xticks([])
    axes.tick_params(colors=INK, labelsize=10, length=0)
    axes.set_title(TITLE, loc="right", fontsize=12, fontweight="bold", color=INK)
    for side in axes.spines.values():
        side.set_visible(False)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=150, metadata={"Description": json.dumps([*map(list, drawn)])})

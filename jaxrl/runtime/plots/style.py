"""Style and writing of figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime.system.disk import replacing

LINE, PALE, FAINT, INK, GRID = "#1f6feb", "#8db7f5", "#8c959f", "#24292f", "#d8dee4"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Palette of Okabe and Ito, which colour-blind readers can distinguish, without yellow, which is too pale for a line."""
DASHES = ("-", "--", ":", "-.")
"""Line styles of the first seven curves, the next seven, and so on."""

FORMATS = ("png", "pdf", "svg")
SHADE = 0.18
"""Opacity of a band."""


def new_figure(width: float, height: float) -> Any:
    """Create a figure without pyplot, which would choose a backend for the entire process."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=200, layout="constrained")


def draw_line(
    axes: Any, x: np.ndarray, drawn: Sequence[np.ndarray], colour: str, dashes: str = "-", *, shade: float = SHADE
) -> None:
    """Draw a line, and a band if ``drawn`` also has bounds. A single point is drawn as a dot with a bar."""
    middle, *bounds = drawn
    if bounds and len(x) > 1:
        axes.fill_between(x, *bounds, color=colour, alpha=shade, linewidth=0)
    elif bounds:
        axes.vlines(x, *bounds, color=colour, linewidth=1.5)
    axes.plot(x, middle, color=colour, linestyle=dashes, linewidth=2.0, marker="o" if len(x) == 1 else None)


def set_title(figure: Any, title: str) -> Any:
    """Write a title at the left of the figure, and return its text."""
    return figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK)


def dress(axes: Any, last_step: float, *, xlabel: str, ylabel: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(xlabel, color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.set_xlim(0, max(1, last_step) * 1.04)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the file extension. The file is written atomically, and is identical for the same data."""
    from matplotlib import rc_context

    kind = path.suffix[1:].lower()
    undated: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    # fonttype 42 embeds TrueType fonts; publishers reject the default, Type 3.
    with replacing(path) as file, rc_context({"pdf.fonttype": 42, "svg.hashsalt": "jaxrl"}):
        figure.savefig(file, format=kind, metadata=undated.get(kind))

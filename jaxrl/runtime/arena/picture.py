"""Picture of an arena: ratings with their intervals, and the points of all pairs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from jaxrl.runtime.arena.arena import Arena
from jaxrl.runtime.plots.style import COLOURS, GRID, INK, new_figure, save, set_title

PAPER, DARK = "#ffffff", 0.3
"""Colour of text on cells whose share of points is this far from a half."""


def draw_arena(played: Arena, path: Path, *, title: str) -> None:
    """Draw the results to a file, the strongest player first."""
    order = played.ratings.argsort()[::-1]
    names, place = [played.names[i] for i in order], np.arange(len(order))
    number = played.wins + played.draws + played.losses
    points = np.divide(played.wins + played.draws / 2, number, out=np.full(number.shape, np.nan), where=number > 0)
    figure = new_figure(3.2 + 1.3 * len(order), 1.6 + 0.5 * len(order))
    set_title(figure, title)
    rated, table = figure.subplots(1, 2, sharey=True)
    rated.hlines(place, *played.intervals[order].T, color=COLOURS[0], linewidth=2)
    rated.plot(played.ratings[order], place, "o", color=COLOURS[0])
    rated.set_yticks(place, names)
    rated.set_xlabel("Elo, with 95 % interval", color=INK)
    rated.grid(axis="x", color=GRID, linewidth=0.7)
    rated.set_ylim(len(order) - 0.5, -0.5)
    table.imshow(points[np.ix_(order, order)], vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    table.set_xticks(place, names, rotation=30, ha="right")
    table.set_xlabel("share of points against", color=INK)
    for i, j in itertools.permutations(place, 2):
        share = points[order[i], order[j]]
        colour = PAPER if abs(share - 0.5) > DARK else INK
        table.text(j, i, f"{share:.0%}", ha="center", va="center", fontsize=8, color=colour)
    for axes in (rated, table):
        axes.tick_params(colors=INK, labelsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    save(figure, path)

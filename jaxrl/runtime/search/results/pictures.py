"""``search.png``: the best score so far, the scores at rungs, the importance of settings, and each setting against the score."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.plots.style import COLOURS, GRID, INK, LINE, PALE, new_figure, save, set_title
from jaxrl.runtime.search.search_file import SearchFile
from jaxrl.runtime.search.sweep import in_a_word
from jaxrl.runtime.search.trials import Trial, Trials
from jaxrl.settings.space import Dimension

COLUMNS = 3


def draw(search: SearchFile, trials: Trials, path: Path) -> None:
    """Draw the picture of a search that has ended."""
    panels = [_best_so_far, _scores_at_rungs, _importances]
    rows = 1 + math.ceil(len(search.space) / COLUMNS)
    figure = new_figure(3.6 * COLUMNS, 0.5 + 2.7 * rows)
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for axes, panel in zip(grid[0], panels, strict=True):
        _dress(axes)
        panel(axes, search, trials)
    for place, axes in enumerate(grid[1:].ravel()):
        if place < len(search.space):
            _dress(axes)
            _against_score(axes, search.space[place], trials)
        else:
            axes.axis("off")
    options = search.options
    what = f"{options.method}, {len(trials.all)} trials × {len(search.seeds)} seeds"
    set_title(figure, f"{ALGORITHMS[search.algorithm].title} · {search.env} · {what}")
    save(figure, path)


def _dress(axes: Any) -> None:
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(axes: Any, xlabel: str, ylabel: str) -> None:
    axes.set_xlabel(xlabel, color=INK, fontsize=9)
    axes.set_ylabel(ylabel, color=INK, fontsize=9)


def _best_so_far(axes: Any, search: SearchFile, trials: Trials) -> None:
    """Draw the best score of the trials that had ended, against the parts that all slots had trained."""
    from matplotlib.ticker import EngFormatter

    done = sorted((trial.ended or 0, trials.score(trial)) for trial in trials.complete)
    per_boundary = search.options.batch * len(search.seeds) * search.total_steps / trials.rungs.parts
    x = [at * per_boundary for at, _ in done]
    y = np.fmax.accumulate([score for _, score in done])
    axes.step(x, y, where="post", color=LINE, linewidth=2)
    axes.plot(x, [score for _, score in done], "o", color=PALE, markersize=3)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _label(axes, "env steps of all trials", "score; line: best so far")


def _scores_at_rungs(axes: Any, search: SearchFile, trials: Trials) -> None:
    """Draw a line for each trial over the ages at which it was tested."""
    for trial in sorted(trials.all, key=lambda trial: trial.end == "complete"):
        ages = sorted(trial.tests)
        colour, width = (LINE, 1.2) if trial.end == "complete" else (PALE, 0.7)
        y = [trials.score(trial, age) for age in ages]
        axes.plot([age / trials.rungs.parts for age in ages], y, color=colour, linewidth=width, marker="o", markersize=2.5)
    axes.set_xlim(0, 1.04)
    _label(axes, "share of a training", "score; dark: trained to the end")


def _importances(axes: Any, search: SearchFile, trials: Trials) -> None:
    """Draw the share of the variance of good scores that each setting explains (PED-ANOVA: Watanabe et al. 2023)."""
    from jaxrl.runtime.search.optuna_adviser import importances

    if (shares := importances(search.space, trials)) is None:
        axes.axis("off")
        return
    names = [name for name, _ in sorted(shares.items(), key=lambda item: item[1])]
    axes.barh(names, [shares[name] for name in names], color=PALE)
    axes.tick_params(axis="y", labelsize=8)
    _label(axes, "importance", "")


def _against_score(axes: Any, dimension: Dimension, trials: Trials) -> None:
    """Draw each trial's last score against a setting, coloured by its rank."""
    scored = [trial for trial in trials.all if not math.isnan(trials.score(trial))]
    ranks = np.argsort(np.argsort([trials.score(trial) for trial in scored]))
    x = [_place(dimension, trial) for trial in scored]
    axes.scatter(x, [trials.score(trial) for trial in scored], c=ranks, cmap="viridis", s=12)
    if dimension.choices:
        axes.set_xticks(range(len(dimension.choices)), [in_a_word(each) for each in dimension.choices])
        axes.set_xlim(-0.5, len(dimension.choices) - 0.5)
    elif dimension.log:
        axes.set_xscale("log")
    name = f"1 − {dimension.name}" if dimension.log == "complement" else dimension.name
    _label(axes, name, "last score")
    axes.axhline(max((trials.score(trial) for trial in scored), default=0.0), color=COLOURS[1], linewidth=0.6)


def _place(dimension: Dimension, trial: Trial) -> float:
    value = trial.settings[dimension.name]
    if dimension.choices:
        return dimension.choices.index(value)
    return 1 - value if dimension.log == "complement" else value

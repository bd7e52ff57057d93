"""Env steps that searches need, on a table of returns: all settings of a grid are trained once, and searches look them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.markdown import Requirement, misses, origin, requirement_table, table
from benchmarks.numbers import short
from benchmarks.record import write_result
from benchmarks.search import SETTINGS
from benchmarks.speed import say
from jaxrl.runtime.plots.statistics import METRICS, trimmed_mean
from jaxrl.runtime.search.lanes.lanes import build
from jaxrl.runtime.search.progress import SearchProgress
from jaxrl.runtime.search.search_file import SearchFile, read_search
from jaxrl.runtime.search.session import SearchSession
from jaxrl.runtime.search.space import Space
from jaxrl.settings.space import Dimension

CELLS, SEEDS = 16, 8
"""Values of each setting in the table, and seeds of each cell."""
SPACE = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "ent_coef": {"low": 1e-4, "high": 1.0, "log": True},
}
STEPS = {"Acrobot-v1": 51_200}
"""Env steps of each seed of a trial: so few that only some settings are good, and enough for a rung to tell something. On
CartPole no length is both."""
RUNGS = [0.1, 0.3, 1.0]
"""Rungs of the table."""
METHODS: dict[str, dict[str, Any]] = {
    "random": {"method": "random", "rungs": [1.0]},
    "tpe": {"method": "tpe", "rungs": [1.0]},
    "tpe with rungs": {"method": "tpe", "rungs": RUNGS},
}
"""Searches that are compared."""
SEARCHES, TRIALS, BATCH = 20, 256, 4
NEAR, MOST_SHARE = 0.99, 0.4
"""Share of the best cell's score that a search must reach, and the most of random search's env steps."""


def entries_of(env: str, space: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    entries = {"algorithm": "ppo", "env": env, "total_steps": STEPS[env], "seeds": SEEDS, "settings": SETTINGS, "space": space}
    return entries | {"search": {"top": 0} | options}


def searched_space(env: str) -> Space:
    return read_search(entries_of(env, SPACE, method="random")).space


def middles(dimension: Dimension) -> list[float]:
    """Return the values of the cells: the middle of each, on the line on which the setting is uniform."""
    return [dimension.at((place + 0.5) / CELLS) for place in range(CELLS)]


def cell_of(dimension: Dimension, value: float) -> int:
    """Return the cell in which a value is."""
    begin, end = dimension.line
    return min(CELLS - 1, int((dimension.to_line(value) - begin) / (end - begin) * CELLS))


# ------------------------------------------------------------------------------------------------------------------- the table


def compute(env: str) -> list[list[list[float]]]:
    """Train all cells: a grid whose trials all continue. Return the mean returns, [cell][rung][seed]."""
    lists = {dimension.name: middles(dimension) for dimension in searched_space(env)}
    search = read_search(entries_of(env, lists, method="grid", batch=CELLS, groups=CELLS, rungs=RUNGS, keep=1.0))
    session = SearchSession(search, None, SearchProgress("", 1, quiet=True), lambda: False)
    session.go()
    return [[trial.tests[age] for age in search.rungs.ages] for trial in session.trials.all]


class TableLanes:
    """Slots whose trials are looked up in a table, with the functions of ``Lanes``."""

    def __init__(self, cells: Sequence[Sequence[Sequence[float]]], search: SearchFile) -> None:
        self.agent, self._cells, self._search = build(search, {}), cells, search
        self._slots: dict[int, int] = {}

    def refill(self, trials: Mapping[int, Mapping[str, float]], total_steps: int) -> None:
        for slot, hyperparams in trials.items():
            row, column = (cell_of(each, hyperparams[str(each.hyperparam)]) for each in self._search.space)
            self._slots[slot] = CELLS * row + column

    def train(self, iterations: Mapping[int, int]) -> int:
        return sum(iterations.values()) * self.agent.steps_per_iteration * SEEDS

    def test(self, slots: Sequence[int], ages: Sequence[int], episodes: int) -> np.ndarray:
        shares = [age / self._search.rungs.parts for age in ages]
        rungs = [RUNGS.index(share) for share in shares]
        return np.array([self._cells[self._slots[slot]][rung] for slot, rung in zip(slots, rungs, strict=True)])

    def compile_seconds(self) -> float:
        return 0.0

    def close(self) -> None: ...


# ---------------------------------------------------------------------------------------------------------------- the searches


def score_of(returns: Sequence[float]) -> float:
    return float(trimmed_mean(np.asarray(returns), METRICS["iqm"]))


def target_of(cells: Any) -> tuple[float, float]:
    """Return the score that a search must reach, and the share of the cells that have it at the end."""
    scores = np.array([score_of(cell[-1]) for cell in cells])
    target = scores.max() - (1 - NEAR) * abs(scores.max())
    return float(target), float((scores >= target).mean())


def steps_to_target(env: str, cells: Any, target: float, name: str, seed: int) -> int:
    """Return the env steps until a trial that trained to the end has a score of at least ``target``; all if there was none."""
    options = METHODS[name] | {"trials": TRIALS, "batch": BATCH, "seed": seed}

    def is_found() -> bool:
        best = session.trials.complete[:1]
        return bool(best) and session.trials.score(best[0]) >= target

    search, progress = read_search(entries_of(env, SPACE, **options)), SearchProgress("", 1, quiet=True)
    session = SearchSession(search, None, progress, is_found, lambda search, structure: TableLanes(cells, search))
    session.go()
    return session.trials.env_steps


def measure(out: Path, searches: int = SEARCHES) -> dict[str, Any]:
    """Compute the tables, search each, and write ``landscape.json``."""
    found: dict[str, Any] = {}
    for env in STEPS:
        cells = compute(env)
        target, share = target_of(cells)
        say(f"{env}: {len(cells)} cells are trained, and {share:.1%} of them reach the target {target:.4g}")
        steps = {name: [steps_to_target(env, cells, target, name, seed) for seed in range(searches)] for name in METHODS}
        found[env] = {"cells": cells, "target": target, "share": share, "steps": steps}
    return write_result(out, "landscape", environments=found)


# --------------------------------------------------------------------------------------------------------------------- figures


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    rows = []
    for env, found in result["environments"].items():
        share = median(found["steps"]["tpe with rungs"]) / median(found["steps"]["random"])
        rows.append((f"{env}: env steps of tpe with rungs ÷ random", f"≤ {MOST_SHARE}", f"{share:.2f}", share <= MOST_SHARE))
    return rows


missed = misses(requirements)


def landscape_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for env, found in result["environments"].items():
        for name, steps in found["steps"].items():
            low, middle, high = np.quantile(steps, [0.25, 0.5, 0.75])
            rows.append([env, name, f"{found['target']:.4g}", f"{found['share']:.1%}", *map(short, (low, middle, high))])
    lines = [
        "## Env steps that a search needs",
        origin(result),
        f"A table of {CELLS} learning rates × {CELLS} entropy bonuses of PPO, {SEEDS} seeds each, is computed once, and searched "
        f"{SEARCHES} times by each method, {BATCH} trials at a time, until a trial has {NEAR:.0%} of the best cell's score. "
        "Rungs are at 0.1, 0.3 and 1 of a training.",
        table(["environment", "method", "target", "cells that reach it", "first quartile", "median", "third quartile"], rows),
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)

"""The measurement of searches on a table: cells, lookups, targets, the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import landscape

ENV = "Acrobot-v1"


def a_table(good: int, better: float = 100.0) -> list[Any]:
    """Return a table in which the first ``good`` cells are better than the others at all rungs."""
    return [[[better if cell < good else 0.0] * landscape.SEEDS] * 3 for cell in range(landscape.CELLS**2)]


def test_middles_are_in_their_cells() -> None:
    for dimension in landscape.searched_space(ENV):
        middles = landscape.middles(dimension)
        assert [landscape.cell_of(dimension, value) for value in middles] == [*range(landscape.CELLS)]
        assert landscape.cell_of(dimension, dimension.high) == landscape.CELLS - 1


def test_targets() -> None:
    cells = a_table(8)
    cells[0] = [[99.5] * landscape.SEEDS] * 3
    assert landscape.target_of(cells) == (pytest.approx(99.0), 8 / 256)
    assert landscape.target_of(a_table(256, -100.0)) == (pytest.approx(-101.0), 1.0)  # returns may be negative


def test_env_steps_of_searches() -> None:
    everywhere = a_table(landscape.CELLS**2)
    target = 100.0
    random = landscape.steps_to_target(ENV, everywhere, target, "random", 0)
    whole = landscape.BATCH * landscape.SEEDS * 50 * 1024  # 51,200 steps in iterations of 1,024 rows
    assert random == whole
    few = [landscape.steps_to_target(ENV, a_table(16), target, "random", seed) for seed in range(8)]
    assert len({*few}) > 1 and all(steps % whole == 0 for steps in few) and max(few) > 4 * whole  # a cell in 16 is good


def result_of(tpe: float) -> dict[str, Any]:
    found = {"cells": [], "target": 495.0, "share": 0.03, "steps": {"random": [1e6, 2e6, 3e6], "tpe with rungs": [tpe] * 3}}
    return {"command": "c", "date": "d", "hardware": {"cpu": "a CPU"}, "versions": {"jax": "1"}, "environments": {ENV: found}}


@pytest.mark.parametrize(("tpe", "is_missed"), [(0.8e6, False), (0.9e6, True)])
def test_the_report(tpe: float, is_missed: bool) -> None:
    assert landscape.missed(result_of(tpe)) == is_missed
    text = landscape.landscape_report(result_of(tpe))
    assert f"{tpe / 2e6:.2f}" in text and "495" in text and "3.0%" in text


def test_rungs_stop_what_is_worse() -> None:
    pytest.importorskip("optuna")
    steps = landscape.steps_to_target(ENV, a_table(1), 100.0, "tpe with rungs", 0)
    assert 0 < steps < landscape.TRIALS * landscape.SEEDS * 50 * 1024 * 0.6


@pytest.mark.slow
def test_a_small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landscape, "CELLS", 2)
    monkeypatch.setattr(landscape, "STEPS", {ENV: 1600})
    monkeypatch.setattr(landscape, "SETTINGS", landscape.SETTINGS | {"num_envs": 2, "rollout_length": 8})
    cells = np.asarray(landscape.compute(ENV))
    assert cells.shape == (4, 3, landscape.SEEDS) and (cells >= -500).all() and (cells < 0).all()

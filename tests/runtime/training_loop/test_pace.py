"""Estimated time to the end of training."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from jaxrl.runtime.training_loop import pace
from jaxrl.runtime.training_loop.pace import Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, changed by hand."""
    now = [1000.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_compilation_does_not_count(clock: list[float]) -> None:
    compiled = [5.0]
    estimate = Pace(110, lambda: compiled[0], skip_first=False)
    clock[0] += 50
    estimate.begin(10)  # a resumed run
    assert math.isnan(estimate.eta(10))
    clock[0], compiled[0] = clock[0] + 37, compiled[0] + 17
    assert estimate.eta(20) == 20 / 10 * 90


def test_the_first_iteration_does_not_count_where_it_compiles(clock: list[float]) -> None:
    estimate = Pace(110, lambda: 0.0, skip_first=True)
    estimate.begin(10)
    clock[0] += 60
    assert math.isnan(estimate.eta(11))
    clock[0] += 3
    assert estimate.eta(12) == 3 * 98 and estimate.eta(14) == 1 * 96

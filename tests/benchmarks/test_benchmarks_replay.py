"""The benchmark of replay: jaxrl's side runs, and its report is correct."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import replay
from benchmarks.__main__ import main


@pytest.mark.slow
@pytest.mark.parametrize("prioritised, copies", [(False, 1), (True, 2)])
def test_our_side_adds_and_draws(prioritised: bool, copies: int) -> None:
    states, loop = replay.program(replay.ours(200, prioritised=prioritised), copies, 150)
    keys = jax.random.split(jax.random.key(0), copies) if copies > 1 else jax.random.key(0)
    states, total = loop(states, keys)
    ring = states.ring if prioritised else states
    np.testing.assert_array_equal(ring.size, np.full(np.shape(ring.size), 150))
    assert np.isfinite(total).all() and np.all(np.asarray(total) != 0)


def test_the_report_divides_round_by_round(capsys: Any) -> None:
    seconds = {"jaxrl": [1e-5, 2e-5, 4e-5], "flashbax": [3e-5, 4e-5, 2e-5]}
    result = {
        "command": "python -m benchmarks replay",
        "date": "today",
        "hardware": {"cpu": "a CPU", "cores": 2},
        "versions": {"jax": "1", "flashbax": "2"},
        "capacity": 1000,
        "batch_size": 32,
        "cases": [{"prioritised": True, "copies": 16, "seconds": seconds}],
    }
    assert replay.ratios(result) == [2.0]
    report = replay.replay_report(result)
    row = next(line for line in report.splitlines() if "prioritised" in line and "|" in line)
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["prioritised", "16", "20.0", "30.0", "2.00×", "yes"]


def test_without_flashbax_it_says_what_to_install(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "flashbax", None)
    assert main(["replay"]) == 2
    assert 'flashbax is missing: pip install "jaxrl[peers]"' in capsys.readouterr().err


@pytest.mark.parametrize("seconds, iterations", [(0.0, replay.FEWEST), (1e6, 40)])
def test_sections_are_as_long_as_they_may_take(monkeypatch: Any, seconds: float, iterations: int) -> None:
    monkeypatch.setattr(replay, "SECTION_SECONDS", seconds)
    timed = replay.Timed(replay.ours(200, prioritised=False), 1, 40)
    assert timed.iterations == iterations and timed.section() > 0

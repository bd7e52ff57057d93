"""The benchmark of replay: jaxrl's side runs, in sections of a fitting length."""

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


def test_without_flashbax_it_says_what_to_install(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "flashbax", None)
    assert main(["replay"]) == 2
    assert 'flashbax is missing: pip install "jaxrl[peers]"' in capsys.readouterr().err


@pytest.mark.parametrize("seconds, iterations", [(0.0, replay.FEWEST), (1e6, 40)])
def test_sections_are_as_long_as_they_may_take(monkeypatch: Any, seconds: float, iterations: int) -> None:
    monkeypatch.setattr(replay, "SECTION_SECONDS", seconds)
    timed = replay.Timed(replay.ours(200, prioritised=False), 1, 40)
    assert timed.iterations == iterations and timed.section() > 0

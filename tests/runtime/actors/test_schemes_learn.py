"""Each scheme trains the algorithm of its name, with data of the age that its name implies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxrl
from jaxrl.runtime.actors.scheme import SCHEMES
from jaxrl.runtime.logs.records import TRAINING_RETURN
from jaxrl.runtime.samplers.diagnostics import LAG, MOST_LAG, STALENESS

ENV = "envpool:CartPole-v1"
CASES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "a2c": (jaxrl.make_a2c, {}, 100_000),
    "a3c": (jaxrl.make_a2c, {}, 200_000),
    "ga3c": (jaxrl.make_impala, {}, 100_000),
    "impala": (jaxrl.make_impala, {}, 100_000),
    "apex": (
        jaxrl.make_dqn,
        {"replay": "prioritized", "num_envs": 8, "epsilon_start": 0.4, "epsilon_end": 0.4, "exploration": "spread"},
        50_000,
    ),
    "r2d2": (jaxrl.make_r2d2, {}, 50_000),
    "ddppo": (jaxrl.make_ppo, {"num_envs": 16}, 60_000),
}
"""Builder, settings and steps. Two minutes at most on two cores."""
OLD = {"ga3c", "impala", "apex", "r2d2"}
"""Schemes in which acting uses older parameters than learning."""


@pytest.mark.learning
@pytest.mark.parametrize("name", CASES)
def test_every_scheme_learns(name: str) -> None:
    make, settings, total_steps = CASES[name]
    _, history = jaxrl.run(make(ENV, **settings), total_steps, scheme=name, num_workers=2, eval_every=0, quiet=True)
    returns = history[TRAINING_RETURN][:, 0]
    known = returns[~np.isnan(returns)]
    assert known[-5:].mean() >= known[0] + 100, f"{name}: {known[0]:.0f} to {known[-5:].mean():.0f}"
    lag, most = (np.nanmax(history[key]) for key in (LAG, MOST_LAG))
    assert (lag > 0 and 0 < most <= 1 + 2 * SCHEMES[name].lag) if name in OLD else most == 0
    assert (np.nanmean(history[STALENESS]) > 0) if name == "a3c" else STALENESS not in history

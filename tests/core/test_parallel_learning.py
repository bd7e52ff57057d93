"""Full runs over devices reach the scores of runs on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl.algorithms.presets import PRESETS
from jaxrl.parallel import data_parallel, make_mesh, shard_seeds, vmap_seeds
from jaxrl.training import num_iterations, run_iterations
from jaxrl.types import Agent

SEEDS, THRESHOLD = 8, 475
WAYS: dict[str, Callable[[Agent], Agent]] = {
    "one device": lambda agent: vmap_seeds(agent, SEEDS),
    "seeds over two": lambda agent: shard_seeds(agent, make_mesh({"seeds": 2})),
    "environments over two": lambda agent: data_parallel(agent, make_mesh({"seeds": 1, "data": 2})),
}


@pytest.mark.learning
@pytest.mark.parametrize("way", WAYS)
def test_ppo_on_cartpole(way: str) -> None:
    """The preset, with 500,000 steps per seed: the mean over seeds of 128 greedy episodes at the end is at least 475."""
    preset = PRESETS["ppo-cartpole"]
    agent: Agent = getattr(jaxrl, f"make_{preset.algorithm}")(preset.env, **preset.settings)
    over, iterations = WAYS[way](agent), num_iterations(agent, preset.total_steps)
    states = over.init(jax.vmap(jax.random.key)(jnp.arange(SEEDS, dtype=jnp.uint32)), {"total_steps": preset.total_steps})
    states, _ = jax.jit(lambda states: run_iterations(over, states, iterations))(states)
    assert len(states.actor.done.sharding.device_set) == (1 if way == "one device" else 2)

    def score(state: Any) -> Any:
        return jaxrl.evaluate(agent, state, jax.random.key(2**31), 128).episodic_return.mean()

    scores = jax.jit(jax.vmap(score))(jax.device_get(states))
    assert float(scores.mean()) >= THRESHOLD, scores.tolist()

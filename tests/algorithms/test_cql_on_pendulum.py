"""Conservative Q-learning learns Pendulum from a mixture of random and good actions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl.algorithms.common.offline.conservative import CQL
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.replay.transitions import ReplayRow

ENV: Any = jaxrl.make_env("Pendulum-v1")
EPISODES, LENGTH = 100, 200


def swing_up(obs: Any) -> Any:
    """Pump energy up to that of the top, and balance there: torques f32[N, 1]."""
    angle, speed = jnp.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]
    energy = speed**2 / 6 + 5 * jnp.cos(angle) - 5
    pump = jnp.where(energy < 0, 2.0, -1.0) * jnp.where(speed < 0, -1, 1)
    return jnp.clip(jnp.where(jnp.cos(angle) > 0.85, -12 * angle - 3 * speed, pump), -2, 2)[:, None]


def play(policy: Any, key: Any) -> ReplayRow:
    """Return episodes of ``LENGTH`` steps that are cut off, [LENGTH + 1, EPISODES].

    Args:
      policy: (obs, key) -> torques f32[EPISODES, 1].
    """
    start, steps = jax.random.split(key)
    state, obs = jax.vmap(ENV.reset, (0, None))(jax.random.split(start, EPISODES), ENV.params)

    def step(carry: Any, key: Any) -> Any:
        state, obs = carry
        torque = policy(obs, key)
        state, reached = jax.vmap(ENV.step, (0, 0, 0, None))(jax.random.split(key, EPISODES), state, torque, ENV.params)
        no = jnp.zeros(EPISODES, bool)
        return (state, reached.obs), ReplayRow(obs, torque, reached.reward, no, ~no)

    return jax.lax.scan(step, (state, obs), jax.random.split(steps, LENGTH + 1))[1]


@pytest.fixture(scope="module")
def data() -> Dataset:
    def mixed(obs: Any, key: Any) -> Any:
        """Actions are random in half of the episodes, and have noise in the other half."""
        choice, action = jax.random.split(key)
        at_random = jax.random.uniform(action, (EPISODES, 1), minval=-2.0, maxval=2.0)
        good = jnp.clip(swing_up(obs) + 0.5 * jax.random.normal(choice, (EPISODES, 1)), -2, 2)
        return jnp.where(jnp.arange(EPISODES)[:, None] % 2 == 0, at_random, good)

    rows: Any = jax.device_get(jax.jit(lambda key: play(mixed, key))(jax.random.key(0)))
    return make_dataset(rows, ENV)


@pytest.mark.slow
def test_it_learns_pendulum(data: Dataset) -> None:
    low, high = data.info.returns
    assert low < -900 and high > -400
    conservative = CQL(weight=0.3, samples=4)
    agent = jaxrl.make_sac(ENV, data=data, conservative=conservative, updates=100, model={"hidden_sizes": (64, 64)})
    _, history = jaxrl.run(agent, 5000, seeds=2, quiet=True, eval_episodes=64, eval_every=50)
    returns = history["evaluation/episodic_return"]
    assert (returns[0] < -1000).all() and (returns[-1] > -300).all()

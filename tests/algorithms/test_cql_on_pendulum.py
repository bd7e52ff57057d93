"""Conservative Q-learning learns Pendulum from a mixture of random and good actions, and does not overestimate its policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.common.critic_ensemble import action_values
from jaxrl.algorithms.common.offline.conservative import CQL
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.replay.transitions import ReplayRow
from jaxrl.rollout.autoreset import first_input

ENV: Any = jaxrl.make_env("Pendulum-v1")
EPISODES, LENGTH, GAMMA = 64, 200, 0.95


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
    settings: dict[str, Any] = {"updates": 100, "gamma": GAMMA, "tau": 0.01, "model": {"hidden_sizes": (64, 64)}}
    agent = jaxrl.make_sac(ENV, data=data, conservative=CQL(weight=0.1, samples=4), **settings)
    states, history = jaxrl.run(agent, 4000, seeds=2, quiet=True, eval_episodes=64, eval_every=40)
    assert (history["evaluation/episodic_return"][-1] > -300).all()
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]

    @jax.jit
    def value_and_return(learner: Any, key: Any) -> Any:
        greedy = lambda obs: setup.model.apply(learner.params.actor, (), first_input(obs, ENV.action_space, EPISODES))[1].mode()  # noqa: E731
        rows = play(lambda obs, key: setup.to_environment(greedy(obs)), key)
        first = rows.obs[0]
        values = action_values(setup, learner.params.critic, first_input(first, ENV.action_space, EPISODES), greedy(first))
        return values.mean(), (GAMMA ** jnp.arange(LENGTH) @ rows.reward[:LENGTH]).mean()

    for i in range(2):
        value, discounted = value_and_return(jax.tree.map(lambda x, i=i: x[i], states.learner), jax.random.key(1))
        assert float(value) < float(discounted) + 0.05 * abs(float(discounted)), i
        assert np.isfinite(value)

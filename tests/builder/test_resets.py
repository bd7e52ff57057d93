"""Periodic resets of networks: what is initialised again and what stays, when, and invalid settings."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.checks.check_env import COMPILE_FAST
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, run_steps, small, to_numpy

jit = partial(jax.jit, compiler_options=COMPILE_FAST)


@pytest.mark.parametrize(
    "rule", ["dqn", pytest.param("sac", marks=pytest.mark.slow), pytest.param("crossq", marks=pytest.mark.slow)]
)
def test_networks_are_new_and_replay_is_kept(rule: str) -> None:
    """With learning rates of 0, parameters change at resets alone: after each two iterations of eight rows."""
    rates = {"learning_rate": 0.0} if rule == "dqn" else {"learning_rate": 0.0, "actor_learning_rate": 0.0}
    agent = small(rule, probes.truncation(), reset_interval=2 * small(rule, probes.truncation()).steps_per_iteration, **rates)
    step, state = jit(agent.step), jit(agent.init)(jax.random.key(0))
    seen = []
    for _ in range(5):
        state, metrics = step(state)
        seen.append(to_numpy(state.learner))
        assert np.isfinite(float(metrics["losses/td_loss"].sum))
    kernels = [np.concatenate([x.ravel() for x in jax.tree.leaves(learner.params)]) for learner in seen]
    assert [bool((x != y).any()) for x, y in itertools.pairwise(kernels)] == [False, True, False, True]
    assert_bit_equal(seen[0].key, seen[-1].key)
    assert [int(learner.version) for learner in seen] == [1, 2, 3, 4, 5]
    assert int(seen[-1].replay.size) > int(seen[0].replay.size)


def test_without_a_reset_training_is_the_same() -> None:
    """The first one is after the end."""
    agents = [small("dqn", probes.truncation(), reset_interval=interval) for interval in (0, 8 * 100)]
    assert_bit_equal(*(run_steps(agent, jit(agent.init)(jax.random.key(0)), 4)[0] for agent in agents))


@pytest.mark.slow
def test_seeds_are_reset_to_different_networks() -> None:
    agent = small("dqn", probes.truncation(), reset_interval=8, learning_rate=0.0)
    states = jit(jax.vmap(agent.init))(jax.random.split(jax.random.key(0), 2))
    step: Any = jit(jax.vmap(agent.step))
    for _ in range(2):
        states, _ = step(states)
    kernel = max(jax.tree.leaves(states.learner.params), key=jnp.size)
    assert (kernel[0] != kernel[1]).any()


def test_resets_are_between_iterations() -> None:
    with pytest.raises(ValueError, match="reset_interval=12 must be a multiple of an iteration's 8 rows"):
        small("dqn", probes.truncation(), reset_interval=12)


def test_with_several_agents_the_interval_counts_steps_of_environments() -> None:
    """Each of three agents is a lane, so a step is three rows."""
    agent = small("dqn", "tests.helpers.teams:mortal", reset_interval=16)
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    assert agent.env.num_agents == 3 and setup.steps_per_iteration == 8
    assert setup.config.reset_interval // setup.config.steps_per_iteration == 2

"""Which leaves of a state belong to environments: a rule of one's own says so, and is shared out over devices without a spec."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agent import bind
from jaxrl.config import Positive
from jaxrl.metrics import scalars
from jaxrl.optimize import pmean
from jaxrl.parallel import data_parallel, env_axes, join_state, split_state
from jaxrl.types import Agent, Algorithm, Policy
from tests import probes
from tests.agents import assert_bit_equal, assert_close, small_dqn

KEY = partial(jax.random.key, 0)
NUM_ENVS, ROWS = 4, 3


class Visits(NamedTuple):
    by_env: Any
    """f32[2, num_envs]: valid rows, and rewards, of each environment"""
    rows: Any
    """f32[]"""

    @property
    def env_axes(self) -> dict[str, int]:
        return {"by_env": 1}


class Hyperparams(NamedTuple):
    learning_rate: Positive = 0.5


class State(NamedTuple):
    params: Any
    opt_state: Any
    hyperparams: Hyperparams
    statistics: Any
    key: Any
    version: Any


def counting_agent(axis_name: str | None = None, num_counted: int = NUM_ENVS) -> Agent:
    """A rule without a builder, so without a spec, that counts per environment, deep in its state."""
    env = probes.constant_reward()

    def init(key: Any, hyperparams: Hyperparams) -> State:
        visits = {"deep": [Visits(jnp.zeros((2, num_counted)), jnp.zeros(()))]}
        return State(jnp.zeros(()), (), hyperparams, visits, key, jnp.zeros((), jnp.int32))

    def act(policy: Policy, carry: Any, inputs: Any, env_id: Any, key: Any, *, explore: bool) -> Any:
        return carry, (env_id % 2).astype(jnp.int32), {}

    def update(learner: State, rollout: Any) -> Any:
        [(by_env, rows)] = learner.statistics["deep"]
        new = jnp.stack([rollout.valid.sum(0) * (1.0 + rollout.env_id), rollout.reward.sum(0)])
        rows += NUM_ENVS * pmean(rollout.valid.mean(dtype=jnp.float32), axis_name)
        params = learner.params + learner.hyperparams.learning_rate * pmean(rollout.reward.mean(), axis_name)
        learner = learner._replace(statistics={"deep": [Visits(by_env + new, rows)]}, params=params, version=learner.version + 1)
        return learner, scalars({"losses/loss": params})

    algorithm = Algorithm(init, lambda learner: Policy(learner.params, (), (), learner.version), act, update, lambda batch: ())
    return bind(algorithm, env, num_envs=NUM_ENVS, rollout_length=ROWS, hyperparams=Hyperparams(), axis_name=axis_name)


def test_a_rule_of_ones_own_is_shared_out_over_devices() -> None:
    solo, agent = counting_agent(), counting_agent("d")
    state = solo.init(KEY())
    axes = env_axes(agent, state)
    assert axes.learner.statistics == {"deep": [Visits(1, -1)]}
    assert axes.learner.params == axes.iteration == -1 and axes.actor.done == axes.actor.input.is_first == 0
    assert_bit_equal(join_state(agent, split_state(agent, state, 2)), state)

    shared, step = data_parallel(agent, 2), jax.jit(solo.step)
    both = shared.init(KEY())
    assert len(both.learner.statistics["deep"][0].by_env.sharding.device_set) == 2
    shared_step = jax.jit(shared.step)
    for _ in range(2):
        state, both = step(state)[0], shared_step(both)[0]
    assert_close(both, state)
    assert len(np.unique(both.learner.statistics["deep"][0].by_env[0])) == NUM_ENVS


def test_axes_that_do_not_run_over_environments_are_named() -> None:
    agent = counting_agent("d", num_counted=NUM_ENVS + 1)
    message = r"state\.learner\.statistics\['deep'\]\[0\]\.by_env has the shape \(2, 5\), .* axis 1 runs over the 4 environments"
    with pytest.raises(ValueError, match=message):
        env_axes(agent, jax.eval_shape(agent.init, KEY()))


def test_no_axis_and_no_spec_cannot_be_shared_out() -> None:
    with pytest.raises(ValueError, match="this agent has no spec to build it again from: bind it with axis_name='d'"):
        data_parallel(counting_agent(), 2)
    with pytest.raises(ValueError, match="names no device axis"):
        split_state(counting_agent(), counting_agent().init(KEY()), 2)


def test_a_replay_says_which_of_its_axes_are_environments() -> None:
    agent = small_dqn(probes.constant_reward())
    state = jax.eval_shape(agent.init, KEY())
    axes = env_axes(agent, state).learner
    assert jax.tree.leaves(axes.replay.records) == [1] and axes.replay.valid == 1
    assert axes.replay.position == axes.replay.size == -1 and set(jax.tree.leaves(axes.params)) == {-1}

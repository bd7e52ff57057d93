"""Shared parts of on-policy actor-critic algorithms: preparation of rows, and an update as one applied gradient."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from jaxrl.algorithms.common.on_policy import normalized_rollout
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.metrics import to_floats
from jaxrl.rollout.running_statistics import Statistics
from jaxrl.types import Agent, AgentState, Rollout
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, assert_bit_equal, assert_close, small, to_numpy
from tests.helpers.oracles.policy_gradient import rollout_case
from tests.helpers.ppo_cases import clock, one_rollout

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
RAW = Statistics((), ())
by_gradient = pytest.mark.parametrize("algorithm", ["a2c", "impala", "reinforce"])


# --------------------------------------------------------------------------------------------------------- rows to learn from


def test_rows_that_count_for_nothing_are_finite() -> None:
    """The reset row after a termination has no influence. The one after a truncation has, since its value is bootstrapped."""
    _, rollout = rollout_case(discrete=False)
    obs = np.array(rollout.inputs.obs)
    spoilt = [(2, 1), (0, 3), (4, 3)]  # after a termination, the same before these rows, and after the last row
    for t, b in spoilt:
        obs[t, b] = np.nan
    action = np.where(rollout.valid[..., None], rollout.action, np.float32(np.inf))
    broken = rollout._replace(inputs=rollout.inputs._replace(obs=obs), extras={"raw_action": action})
    rows = normalized_rollout(RAW, broken)
    assert np.isfinite(rows.inputs.obs).all() and np.isfinite(rows.action).all()
    np.testing.assert_array_equal(rows.inputs.obs, np.nan_to_num(obs))
    assert_bit_equal(rows._replace(inputs=(), action=()), jax.tree.map(np.asarray, broken._replace(inputs=(), action=())))
    for t, b in [(3, 2), (1, 0), (4, 0)]:  # after a truncation, in an episode, and after the rollout
        obs[t, b] = np.nan
    kept = np.isnan(normalized_rollout(RAW, broken).inputs.obs).all(-1)
    assert sorted(zip(*np.nonzero(kept), strict=True)) == [(1, 0), (3, 2), (4, 0)]


def test_actions_are_those_that_were_drawn() -> None:
    _, rollout = rollout_case(discrete=True)
    assert_bit_equal(normalized_rollout(RAW, rollout).action, jnp.asarray(rollout.action))
    drawn = rollout._replace(extras={"raw_action": jnp.asarray(rollout.action) + 1})
    assert_bit_equal(normalized_rollout(RAW, drawn).action, jnp.asarray(rollout.action) + 1)


# ---------------------------------------------------------------------------------------------------- update = apply ∘ gradients


def sgd(hyperparams: Any) -> optax.GradientTransformation:
    return optax.sgd(hyperparams.learning_rate)


@cache
def normalizing(algorithm: str) -> tuple[Agent, AgentState, Rollout]:
    agent = small(algorithm, clock(), normalize_observations=True, normalize_rewards=True, schedules={"gamma": lambda i: 0.5})
    state = jit(agent.init)(KEY())
    return agent, state, one_rollout(agent)(state)


@pytest.mark.slow
@by_gradient
def test_an_update_is_the_gradient_applied(algorithm: str) -> None:
    """The gradient depends only on a policy and the rollout, which another process has; statistics come from ``observe``."""
    agent, state, rollout = normalizing(algorithm)
    learner = state.learner
    assert agent.algorithm.gradients and agent.algorithm.apply and agent.algorithm.observe
    after, metrics = jit(agent.algorithm.update)(learner, rollout)
    gradient, logged = jit(agent.algorithm.gradients)(jit(agent.algorithm.policy)(learner), rollout)
    applied = jit(agent.algorithm.apply)(learner, gradient)
    assert_close(applied._replace(statistics=()), after._replace(statistics=()), atol=1e-6)
    assert to_floats(logged) == pytest.approx(to_floats(metrics), rel=1e-5, abs=1e-6)
    assert float(optax.tree.norm(gradient)) == pytest.approx(to_floats(metrics)["losses/grad_norm"], rel=1e-5)
    assert (int(after.version), int(learner.version)) == (1, 0)
    # Gradients alone do not change the statistics. The rollout changes them as an update does.
    assert_bit_equal(applied.statistics, learner.statistics)
    assert_close(jit(agent.algorithm.observe)(learner, rollout).statistics, after.statistics, atol=1e-6)
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), to_numpy(after.statistics), to_numpy(learner.statistics))
    assert moved.observations.count and moved.rewards.moments.count


@by_gradient
def test_a_policy_brings_the_hyperparameters_that_a_gradient_needs(algorithm: str) -> None:
    agent, state, rollout = normalizing(algorithm)
    policy = agent.algorithm.policy(state.learner)
    assert float(policy.hyperparams.gamma) == pytest.approx(0.5 * 0.99)  # after its schedule
    norm = jit(lambda policy: optax.tree.norm(agent.algorithm.gradients(policy, rollout)[0]))
    assert float(norm(policy)) != float(norm(policy._replace(hyperparams=policy.hyperparams._replace(gamma=jnp.float32(0.9)))))


@by_gradient
def test_a_gradient_is_a_step_of_the_given_optimiser(algorithm: str) -> None:
    agent = small(algorithm, clock(), optimizer=sgd, learning_rate=0.1)
    learner = jit(agent.init)(KEY()).learner
    gradient = jax.tree.map(jnp.ones_like, learner.params)
    after = jit(agent.algorithm.apply)(learner, gradient)
    assert_close(after.params, jax.tree.map(lambda p: p - 0.1, learner.params), atol=1e-6)


@by_gradient
def test_a_gradient_of_another_agent_is_refused(algorithm: str) -> None:
    agent = small(algorithm, clock())
    learner = jax.eval_shape(agent.init, KEY()).learner
    apply = partial(jax.eval_shape, agent.algorithm.apply, learner)
    apply(learner.params)
    for wrong in ({}, jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), learner.params)):
        with pytest.raises(ValueError, match=r"gradient is .*, but the parameters are .*: pass the result of gradients"):
            apply(wrong)


@pytest.mark.slow
@by_gradient
def test_devices_have_the_gradient_of_all_environments(algorithm: str) -> None:
    """The devices have different numbers of valid rows and of finished episodes."""
    settings = {"num_envs": 2, "rollout_length": 7} | ({} if algorithm == "impala" else {"normalize_advantages": True})
    env_params = probes.Cut(jnp.array([2, 3]))
    alone, agent = (small(algorithm, clock(), axis_name=axis, **settings) for axis in (None, "d"))
    state = jit(alone.init)(KEY(), None, env_params)
    rollout, policy = one_rollout(alone)(state), alone.algorithm.policy(state.learner)
    assert len(set(np.asarray(rollout.valid).sum(0))) == 2
    expected, _ = jit(alone.algorithm.gradients)(policy, rollout)
    time_major = {"carry", "env_id", "version"}
    axes = Rollout(*(0 if name in time_major else 1 for name in Rollout._fields))
    share = lambda x, axis: jnp.stack(jnp.split(x, 2, axis))  # noqa: E731
    shares = Rollout(*(jax.tree.map(partial(share, axis=a), x) for x, a in zip(rollout, axes, strict=True)))
    both = jit(jax.vmap(agent.algorithm.gradients, axis_name="d", in_axes=(None, 0)))(policy, shares)[0]
    assert_close(jax.tree.map(lambda x: x[0], both), expected, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.slow
@by_gradient
def test_a_recurrent_rollout_is_learnt_from_as_it_was_acted(algorithm: str) -> None:
    """One row at a time, from the carry that acted, gives the gradient of the whole unroll, also across ends of episodes."""
    agent = small(algorithm, probes.memory(), model=RECURRENT, rollout_length=6)
    state = jit(agent.init)(KEY())
    state, _ = jit(agent.step)(state)  # so that rollouts begin in the middle of episodes
    rollout = one_rollout(agent)(state)
    assert np.any(rollout.carry) and not rollout.valid.all() and not np.asarray(rollout.inputs.is_first[0]).all()
    model = RECURRENT(agent.env.observation_space, agent.env.action_space)

    def row_by_row(params: Any, carry: Any, inputs: Any) -> Any:
        outputs = []
        for t in range(inputs.is_first.shape[0]):
            carry, output = model.apply(params, carry, jax.tree.map(lambda x, t=t: x[t], inputs))
            outputs.append(output)
        return carry, jax.tree.map(lambda *x: jnp.stack(x), *outputs)

    loop = small(algorithm, probes.memory(), model=model._replace(unroll=row_by_row), rollout_length=6)
    policy = agent.algorithm.policy(state.learner)
    gradient, other = (jit(a.algorithm.gradients)(policy, rollout)[0] for a in (agent, loop))
    assert_close(gradient, other, atol=1e-5)
    assert any(np.any(x) for x in jax.tree.leaves(to_numpy(gradient)))


@by_gradient
def test_actions_of_several_dimensions_have_the_shape_of_their_space(algorithm: str) -> None:
    """With and without memory. Nothing is compiled."""
    for kind in (spaces.MultiDiscrete([2, 3]), spaces.Box(np.float32(0), np.float32(1), (2,))):
        for settings in ({}, {"model": RECURRENT}):
            env = probes.constant_reward()._replace(action_space=kind)
            agent = small(algorithm, env, **settings)
            state, _ = jax.eval_shape(lambda key, agent=agent: agent.step(agent.init(key)), KEY())
            assert state.actor.input.prev_action.shape == (4, 2)

"""Checks of arguments of an agent's functions: invalid keys, states and agents are named, with a fix."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.agent import EagerStepWarning, bind
from jaxrl.agent.checks import _warn_of_eager_step, check_key, warn_if_eager
from jaxrl.parallel import data_parallel
from jaxrl.training import make_train, policy_of
from jaxrl.types import HostEnv
from tests.helpers import probes
from tests.helpers.agents import small_dqn, small_ppo

KEY = partial(jax.random.key, 0)


def batch(agent: Any, size: int = 3) -> Any:
    """Return the states of several seeds as zeros, without computing them."""
    shapes = jax.eval_shape(lambda: jax.vmap(agent.init)(jax.random.split(jax.random.key(0), size)))
    return jax.tree.map(
        lambda x: jax.random.split(KEY(), x.shape) if x.dtype == KEY().dtype else jnp.zeros(x.shape, x.dtype), shapes
    )


@pytest.mark.slow
def test_a_step_takes_one_state() -> None:
    agent = small_ppo(probes.constant_reward())
    with pytest.raises(
        ValueError, match=r"^state holds 3 states, on the leading axis of every leaf: use jax.vmap\(agent.step\)\(states\)$"
    ):
        agent.step(batch(agent))
    with pytest.raises(
        TypeError, match=r"^state must be an AgentState, as agent.init\(key\) and agent.step return, not PRNGKeyArray$"
    ):
        agent.step(KEY())
    jax.eval_shape(jax.vmap(agent.step), batch(agent))


@pytest.mark.slow
def test_a_step_outside_of_jit_warns_once() -> None:
    whole = small_ppo(probes.constant_reward())
    quick = whole.algorithm._replace(update=lambda learner, rollout: (learner, {}))  # the real one would take seconds
    agent = bind(quick, whole.env, num_envs=4, rollout_length=1, hyperparams=whole.hyperparams)
    state = jax.tree.map(lambda x: x[0], batch(agent))
    _warn_of_eager_step.cache_clear()
    with pytest.warns(EagerStepWarning, match=r"step = jax.jit\(agent.step\)") as told:
        state, _ = agent.step(state)
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings(action="error"):
        warn_if_eager(state)


@pytest.mark.slow
def test_a_traced_step_does_not_warn() -> None:
    agent = small_ppo(probes.constant_reward())
    states = batch(agent)
    state = jax.tree.map(lambda x: x[0], states)
    with warnings.catch_warnings(action="error"):
        _warn_of_eager_step.cache_clear()
        jax.eval_shape(agent.step, state)
        jax.eval_shape(lambda: agent.step(state))  # with the state in a closure
        jax.eval_shape(jax.vmap(agent.step), states)
        jax.eval_shape(lambda s: jax.lax.scan(lambda s, _: agent.step(s), s, length=2), state)
        shared = data_parallel(small_ppo("tests.helpers.probes:constant_reward"), 2)
        jax.eval_shape(shared.step, state)
        with pytest.raises(EagerStepWarning):
            shared.step(state)
        warnings.simplefilter("ignore", EagerStepWarning)
        warn_if_eager(state)


def test_a_key_is_one_typed_key() -> None:
    for wrong, words in (
        (0, "not int$"),
        (np.zeros(2, np.uint32), "not an array of uint32$"),
        (jax.random.split(KEY(), 3), "not a batch of shape"),
    ):
        with pytest.raises(TypeError, match=f"^key must be .*{words}"):
            check_key(wrong)
        agent = small_ppo(probes.constant_reward())
        with pytest.raises(TypeError, match=f"^key must be .*{words}"):
            jaxrl.evaluate(agent, jax.tree.map(lambda x: x[0], batch(agent)), wrong, 2)


@pytest.mark.parametrize(
    "wrong, words", [("CartPole-v1", "not 'CartPole-v1'$"), (jaxrl.make_ppo, "not a function$"), (None, "not a NoneType$")]
)
def test_an_agent_is_what_a_builder_makes(wrong: Any, words: str) -> None:
    for call in (lambda: jaxrl.run(wrong, 64), lambda: make_train(wrong, 64), lambda: jaxrl.evaluate(wrong, None, KEY())):
        with pytest.raises(TypeError, match=rf"^agent must be an Agent, as jaxrl.make_ppo\('CartPole-v1'\) returns, {words}"):
            call()


@pytest.mark.slow
def test_a_step_for_a_device_axis_runs_under_it() -> None:
    agent = small_ppo(probes.constant_reward(), axis_name="d")
    state = jax.tree.map(lambda x: x[0], batch(agent))
    with pytest.raises(ValueError, match=r"^axis_name='d': step must run under a mapped axis of that name, as in jax.pmap\("):
        jax.eval_shape(agent.step, state)
    jax.eval_shape(jax.vmap(agent.step, axis_name="d"), batch(agent, 1))
    with pytest.raises(TypeError, match=r"^axis_name=3 must be the name of a mapped axis"):
        small_ppo(probes.constant_reward(), axis_name=3)


# ------------------------------------------------------------------------------------------------------------- evaluated episodes


@pytest.mark.slow
@pytest.mark.parametrize("build", [small_ppo, small_dqn])
def test_states_of_several_seeds_are_no_policy(build: Any) -> None:
    agent = build(probes.action_choice())
    states = batch(agent)
    way = r"jax.tree.map\(lambda x: x\[0\], states\), or evaluate all, jax.vmap\(lambda state: jaxrl.evaluate\(agent, state,"
    for several in (states, agent.algorithm.policy(states.learner)):
        with pytest.raises(
            ValueError, match=rf"^policy holds 3 seeds, on the leading axis of every leaf: pick one, {way}"
        ) as caught:
            jaxrl.evaluate(agent, several, KEY(), 2)
        assert "\n" not in str(caught.value)
    one = jax.tree.map(lambda x: x[0], states)
    assert jax.eval_shape(lambda s: jaxrl.evaluate(agent, s, KEY(), 2), one).finished.shape == (2,)
    every = jax.eval_shape(jax.vmap(lambda state: jaxrl.evaluate(agent, state, KEY(), 2)), states)
    assert every.finished.shape == (3, 2)  # the two ways that the message suggests


def test_what_is_no_policy() -> None:
    agent = small_ppo(probes.constant_reward())
    states = batch(agent)
    for wrong, words in (
        ((states, {}), "not a tuple: states is the first of the two that run returns$"),
        ([jax.tree.map(lambda x: x[0], states)], r"not a list: pick one, states\[0\]$"),  # of a host environment, from run
        (states.learner, "not a Learner$"),
        (states.learner.params, "not bare parameters$"),
        (None, "not a NoneType$"),
    ):
        with pytest.raises(TypeError, match=rf"^policy must be an AgentState or a Policy \(agent.algorithm.policy.*{words}"):
            jaxrl.evaluate(agent, wrong, KEY(), 2)


def test_another_agents_state_is_named() -> None:
    agent, other = small_ppo(probes.constant_reward()), small_ppo(probes.memory())
    state = jax.tree.map(lambda x: x[0], batch(other))
    with pytest.raises(
        ValueError, match=r"^policy is of another agent: its params\[.* but the agent on .* has float32"
    ) as caught:
        jaxrl.evaluate(agent, state, KEY(), 2)
    assert "\n" not in str(caught.value)


def test_host_environments_say_the_same() -> None:
    pure = probes.constant_reward()
    env = HostEnv(lambda num_envs, seed, first_id=0: None, pure.observation_space, pure.action_space, {}, "host")  # type: ignore
    agent = small_ppo(env)
    with pytest.raises(TypeError, match=r"not a list: pick one, states\[0\]$"):
        jaxrl.evaluate(agent, [agent.init(KEY())], KEY(), 2)  # type: ignore[arg-type]
    assert policy_of(agent, agent.init(KEY())).version == 0


# ---------------------------------------------------------------------------------------------------------------- environments


def test_environments_of_other_libraries_are_recognised() -> None:
    """tests/envs/backends/test_gymnasium_classes.py tests conversions that work, and the rest of the message."""
    for wrong, words in (
        (gymnasium.make("CartPole-v1"), "a single CartPoleEnv: give an id, class or function to make num_envs of them, .*"),
        (gymnax.make("CartPole-v1"), "gymnax's CartPole: give its id"),
        (gymnax.make("CartPole-v1")[0], "gymnax's CartPole: give its id"),
        (probes.constant_reward, ".* call it, or give its id 'module:constant_reward'"),
        (None, "NoneType"),
    ):
        with pytest.raises(TypeError, match=f"^env must be an id such as 'CartPole-v1', an Env, a HostEnv, .*, not {words}$"):
            jaxrl.make_ppo(wrong)

"""brax's environments against brax with its wrappers, on its smallest system."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import check_env, describe_env, list_envs, make_env
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.checks.validate import find_problems, picture_problem
from jaxrl.rollout.collect import advance, init_actor
from jaxrl.types import Env
from tests.helpers.agents import small_ppo

lacking = importlib.util.find_spec("brax") is None
installed = pytest.mark.skipif(lacking, reason='brax is not installed: pip install "jaxrl[brax]"')
NAME = "brax:inverted_pendulum?backend='generalized'"
LIMIT, ROWS = 7, 24


@cache
def env() -> Env:
    made = make_env(f"{NAME}&max_episode_steps={LIMIT}")
    assert isinstance(made, Env)
    return made


@pytest.mark.slow
@installed
def test_the_adapter_keeps_the_contract() -> None:
    assert find_problems(env()) == []
    assert (env().observation_space.shape, env().action_space.shape, env().max_episode_steps) == ((4,), (1,), LIMIT)
    assert describe_env(env()) == env().name == f"{NAME}&max_episode_steps={LIMIT}"
    assert make_env(NAME).max_episode_steps == 1000
    assert make_env(NAME).step is env().step  # equal except for the limit: one compiled program


@pytest.mark.slow
@installed
def test_rows_are_those_of_brax_with_its_own_wrapper() -> None:
    """All observations, including the last one before a reset. A fall terminates, and the limit truncates."""
    from brax import envs

    theirs = envs.create("inverted_pendulum", episode_length=LIMIT, auto_reset=False, backend="generalized")
    agent = small_ppo(env(), num_envs=2)
    env_id = jnp.arange(2)
    actor = init_actor(agent.algorithm, env(), jax.random.key(0), env_id, ())
    # One environment is not pushed. The other is pushed, and falls before the limit.
    action = jnp.array([[0.0], [1.0]])
    mine = jax.jit(
        lambda actor, key: advance(env(), actor, actor.carry, action, (), env_id, key, key), compiler_options=COMPILE_FAST
    )
    step = jax.jit(jax.vmap(theirs.step), compiler_options=COMPILE_FAST)
    state = jax.vmap(theirs.reset)(jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(env_id))
    np.testing.assert_allclose(actor.input.obs, state.obs, rtol=1e-6)
    ended = np.zeros(2, bool)
    seen = set()
    for row in range(ROWS):
        state = step(state, action)
        actor, outcome = mine(actor, jax.random.key(row))
        for i in np.flatnonzero(~ended):
            np.testing.assert_allclose(actor.input.obs[i], state.obs[i], rtol=1e-4, atol=1e-6)
            assert outcome.reward[i] == state.reward[i] == 1
            assert bool(outcome.done[i]) == bool(state.done[i])
            assert bool(outcome.truncated[i]) == bool(state.info["truncation"][i])
            seen.add((int(i), bool(outcome.terminated[i]), bool(outcome.truncated[i])))
        assert (np.asarray(outcome.valid) == ~ended).all()
        # brax made a step where jaxrl's row was a reset: it continues from jaxrl's new state.
        fresh = {**state.info, "steps": jnp.where(jnp.asarray(ended), 0, state.info["steps"])}
        reset = jax.tree.map(
            lambda ours, x, ended=ended: jnp.where(ended.reshape(-1, *[1] * (x.ndim - 1)), ours, x),
            actor.env_state.pipeline_state,
            state.pipeline_state,
        )
        state = state.replace(pipeline_state=reset, info=fresh, done=jnp.zeros(2))
        ended = np.asarray(outcome.done)
    assert seen == {(0, False, False), (0, False, True), (1, False, False), (1, True, False)}


@pytest.mark.slow
@installed
def test_steps_do_not_write_into_the_state_they_are_given() -> None:
    """brax does, in the dict of its metrics."""
    ant = make_env("brax:ant?backend='spring'")
    assert isinstance(ant, Env)

    def twice(key: Any) -> Any:
        state, _ = ant.reset(key, ())
        before = dict(state.metrics), dict(state.info)
        _, reached = ant.step(key, state, jnp.zeros(8), ())
        assert {name: id(x) for name, x in state.metrics.items()} == {name: id(x) for name, x in before[0].items()}
        return reached

    reached = jax.eval_shape(twice, jax.random.key(0))
    assert {"reward_forward", "x_position"} <= {*reached.info} and reached.reward.dtype == jnp.float32
    assert reached.obs.shape == ant.observation_space.shape and ant.action_space.shape == (8,)


@pytest.mark.slow
@installed
def test_pictures() -> None:
    """Also without a display. If MuJoCo finds no OpenGL at all, the error says what to install."""
    state = jax.jit(env().reset, compiler_options=COMPILE_FAST)(jax.random.key(0), ())[0]
    assert env().render is not None
    try:
        picture = env().render(state, None, ())
    except RuntimeError as error:
        assert "cannot be drawn here: " in str(error) and "apt-get install libegl1" in str(error)
        return
    assert picture_problem(picture) is None and len(np.unique(picture)) > 10


@installed
@pytest.mark.parametrize(
    "env_id, message",
    [
        ("brax:antt", "brax has no environment 'antt'. Did you mean 'ant'\\?"),
        ("brax:ant?backend='mujoco'", "option backend='mujoco' must be one of 'generalized', 'mjx', 'positional', 'spring'"),
        ("brax:ant?healthy_rewards=1.0", "brax:ant has no option 'healthy_rewards'. Did you mean 'healthy_reward'\\?"),
        ("brax:ant?healthy_reward='much'", "option healthy_reward='much' must be a number"),
        ("brax:ant?max_episode_steps=0", "option max_episode_steps=0 must be an integer >= 1"),
    ],
)
def test_what_brax_does_not_have_is_refused(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(env_id)


@installed
def test_names_are_known_before_brax_is_imported() -> None:
    from brax import envs

    assert {name.removeprefix("brax:") for name in list_envs("brax")} == {*envs._envs} - {"fast"}


@pytest.mark.slow
@installed
def test_the_smallest_system_passes_the_check() -> None:
    check_env(env())


def test_a_missing_brax_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "brax", None)
    with pytest.raises(ModuleNotFoundError, match=r'brax:ant needs the package brax, .*: pip install "jaxrl\[brax\]"$'):
        make_env("brax:ant?healthy_reward=2.5")
    with pytest.raises(ModuleNotFoundError, match=r'the backend brax needs .*pip install "jaxrl\[brax\]"$'):
        list_envs("brax")
    assert not any(name.startswith("brax") for name in list_envs())

"""MuJoCo Playground's environments against playground itself, on its smallest task."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import describe_env, list_envs, make_env
from jaxrl.envs.backends import playground
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.checks.validate import find_problems, picture_problem
from jaxrl.types import Env

lacking = importlib.util.find_spec("mujoco_playground") is None
installed = pytest.mark.skipif(lacking, reason='playground is not installed: pip install "jaxrl[playground]"')
NAME, LIMIT = "playground:CartpoleBalance", 6


class State(NamedTuple):
    obs: Any
    reward: Any
    done: Any
    metrics: Any


@cache
def env() -> Env:
    made = make_env(f"{NAME}?max_episode_steps={LIMIT}")
    assert isinstance(made, Env)
    return made


@installed
def test_names_and_errors() -> None:
    assert {*list_envs("playground")} >= {"playground:CheetahRun", "playground:WalkerWalk"}
    for env_id, words in (
        ("playground:Cheetah", "playground has no environment 'Cheetah'"),
        (f"{NAME}?impl=cuda", "option impl='cuda' must be one of 'jax', 'warp'"),
        (f"{NAME}?ctrl_d=0.1", "has no option 'ctrl_d'. Did you mean 'ctrl_dt'"),
        (f"{NAME}?vision=True", "has no option 'vision'"),
        (f"{NAME}?max_episode_steps=0", "max_episode_steps"),
    ):
        with pytest.raises(ValueError, match=words):
            make_env(env_id)


@installed
def test_robots_need_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """jaxrl does not let playground download them."""
    monkeypatch.setattr(playground, "MODELS", "external_deps/none")
    with pytest.raises(ValueError, match=r"playground:Go1Getup needs the models of MuJoCo Menagerie .* jaxrl downloads nothing"):
        make_env("playground:Go1Getup")


@pytest.mark.slow
@installed
def test_the_adapter_keeps_the_contract() -> None:
    assert find_problems(env()) == []
    assert (env().observation_space.shape, env().action_space.shape, env().max_episode_steps) == ((5,), (1,), LIMIT)
    assert describe_env(env()) == env().name == f"{NAME}?max_episode_steps={LIMIT}"
    assert make_env(NAME).max_episode_steps == 1000
    assert make_env(NAME).step is env().step  # equal except for the limit: one compiled program


@pytest.mark.slow
@installed
def test_rows_are_those_of_playground() -> None:
    """The same states, observations and rewards, with the same keys and actions; the limit is jaxrl's."""
    from mujoco_playground import registry

    theirs = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    actions = jax.random.uniform(jax.random.key(1), (LIMIT, 1), minval=-1, maxval=1)

    def ours(key: Any) -> Any:
        state, first = env().reset(key, ())
        return first, jax.lax.scan(lambda state, action: env().step(key, state, action, ()), state, actions)[1]

    def plain(key: Any) -> Any:
        first = theirs.reset(key)
        state, rows = first, []
        for action in actions:
            state = theirs.step(state, action)
            rows.append((state.obs, state.reward, state.done))
        return first.obs, [jnp.stack(x) for x in zip(*rows, strict=True)]

    both = (jax.jit(run, compiler_options=COMPILE_FAST)(jax.random.key(0)) for run in (ours, plain))
    (first, rows), (their_first, (obs, reward, done)) = both
    np.testing.assert_allclose(first, their_first, atol=1e-6)
    np.testing.assert_allclose(rows.obs, obs, atol=1e-5)
    np.testing.assert_allclose(rows.reward, reward, atol=1e-5)
    assert not np.asarray(rows.terminated).any() and not np.asarray(rows.truncated).any() and not np.asarray(done).any()
    assert "reward/upright" in rows.info


@installed
def test_a_dict_keeps_what_only_critics_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Robots observe a Dict; here a task of the Control Suite does."""
    from mujoco_playground import registry

    class Task:
        """Task whose critics see more."""

        action_size, dt, mj_model = 2, 0.02, None

        def reset(self, key: Any) -> Any:
            return State({"state": jnp.zeros(3), "privileged_state": jnp.zeros(7)}, jnp.zeros(()), jnp.zeros(()), {})

        def step(self, state: Any, action: Any) -> Any:
            return state._replace(reward=1.0, done=jnp.float32(1))

    monkeypatch.setattr(registry, "load", lambda name, config_overrides: Task())
    playground._task.cache_clear()
    made = playground.make("PointMass", {})
    playground._task.cache_clear()
    assert isinstance(made.observation_space, spaces.Dict) and {*made.observation_space} == {"state", "privileged_state"}
    state, obs = made.reset(jax.random.key(0), ())
    _, reached = made.step(jax.random.key(0), state, jnp.zeros(2), ())
    assert obs["privileged_state"].shape == (7,) and bool(reached.terminated) and not bool(reached.truncated)
    assert reached.reward.dtype == jnp.float32 and made.render_fps == 50


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

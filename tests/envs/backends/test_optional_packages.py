"""Backends of optional packages, on the smallest task of each: spaces, dtypes, and truncations separate from terminations."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import check_env, list_envs, make_env
from jaxrl.envs.backends import craftax
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.checks.space_problems import mask_problems
from jaxrl.envs.checks.validate import find_problems
from jaxrl.types import Env

BACKENDS = ("craftax", "jumanji", "xminigrid")


def needs(backend: str, *values: Any, slow: bool = False) -> Any:
    lacking = importlib.util.find_spec(backend) is None
    reason = f'{backend} is not installed: pip install "jaxrl[{backend}]"'
    return pytest.param(*values, marks=[pytest.mark.skipif(lacking, reason=reason), *[pytest.mark.slow] * slow])


def pure(env_id: str) -> Env:
    env = make_env(env_id)
    assert isinstance(env, Env)
    return env


def played(env: Env, actions: Any) -> Any:
    """Return observations, rewards and flags of one episode, up to any kind of end."""

    def play(key: Any) -> Any:
        state, first = env.reset(key, env.params)

        def step(state: Any, action: Any) -> Any:
            return env.step(key, state, action, env.params)

        return first, jax.lax.scan(step, state, np.asarray(actions, np.int32))[1]

    return jax.device_get(jax.jit(play, compiler_options=COMPILE_FAST)(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [needs("xminigrid", "xminigrid:MiniGrid-Empty-5x5"), needs("jumanji", "jumanji:Game2048-v1")])
def test_check_env_accepts_them(env_id: str) -> None:
    check_env(make_env(env_id), steps=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "flag"),
    [
        needs("xminigrid", "xminigrid:MiniGrid-Empty-5x5?max_steps=3", "truncated"),
        needs("craftax", "craftax:Craftax-Classic-Symbolic-v1?max_timesteps=3", "truncated", slow=True),  # minutes of compiling
        needs("jumanji", "jumanji:Maze-v0?time_limit=3", "terminated"),
    ],
)
def test_the_third_step_ends_an_episode(env_id: str, flag: str) -> None:
    """By the option that limits it: a truncation, unless the package defines the value after it as 0."""
    env = pure(env_id)
    assert not find_problems(env)
    first, reached = played(env, [0, 0, 0])
    other = {"truncated": "terminated", "terminated": "truncated"}[flag]
    assert getattr(reached, flag).tolist() == [False, False, True] and not getattr(reached, other).any()
    assert reached.reward.dtype == np.float32
    last = jax.tree.map(lambda x: x[-1], reached.obs)
    assert jax.tree.map(np.shape, last) == jax.tree.map(np.shape, first)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [needs("craftax", f"craftax:{name}") for name in craftax.NAMES if "Symbolic" in name])
def test_craftax_keeps_the_contract(env_id: str) -> None:
    """By shapes only."""
    env = pure(f"{env_id}?max_timesteps=50")
    assert not find_problems(env) and env.params.max_timesteps == 50 and pure(env_id).params.max_timesteps >= 10_000


@pytest.mark.parametrize(
    ("env_id", "space", "size"),
    [
        needs("jumanji", "jumanji:Minesweeper-v0", spaces.Discrete(100), 100),
        needs("jumanji", "jumanji:JobShop-v0", spaces.MultiDiscrete([21] * 10), 210),
    ],
)
def test_masks_are_those_that_jaxrl_has(env_id: str, space: Any, size: int) -> None:
    """A mask over all combinations makes a combination one choice. A mask per dimension stays."""
    env = pure(env_id)
    assert env.action_space == space and not mask_problems(env)
    assert env.observation_space["action_mask"].shape == (size,)  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        needs("xminigrid", "", 100),
        needs("xminigrid", "?height=16&width=16", 1024),
        needs("xminigrid", "?height=16&max_steps=7", 7),
    ],
)
def test_the_limit_of_a_grid_follows_from_its_size(options: str, limit: int) -> None:
    assert pure(f"xminigrid:MiniGrid-Empty-5x5{options}").max_episode_steps == limit


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        needs("jumanji", "jumanji:Snake", "jumanji has no environment 'Snake': write 'jumanji:Snake-v1'"),
        needs("jumanji", "jumanji:Snake-v1?size=3", "no option 'size'"),
        needs("xminigrid", "xminigrid:XLand-MiniGrid-R1-9x9", "xminigrid has no environment 'XLand-MiniGrid-R1-9x9'"),
        needs("xminigrid", "xminigrid:MiniGrid-Empty-5x5?max_steps=0", "max_steps=0 must be an integer >= 1"),
        needs("xminigrid", "xminigrid:MiniGrid-Empty-5x5?height=2", "height=2 and width=5 must be at least 3 and 3, walls incl"),
        needs("xminigrid", "xminigrid:MiniGrid-Empty-5x5?height=3&width=3", "height=3 and width=3 leave one free cell"),
        needs("xminigrid", "xminigrid:MiniGrid-DoorKey-5x5?width=4", "height=5 and width=4 must be at least 4 and 5"),
        needs("craftax", "craftax:Craftax-v1", "craftax has no environment 'Craftax-v1'. Did you mean 'Craftax-"),
        needs("craftax", "craftax:Craftax-Classic-Symbolic-v1?god_mode=3", "no option 'god_mode'"),
    ],
)
def test_wrong_ids_are_refused(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(env_id)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_missing_says_what_to_install(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf'needs the package {backend}, which is not installed: pip install "jaxrl\[{backend}\]"'
    ):
        list_envs(backend)

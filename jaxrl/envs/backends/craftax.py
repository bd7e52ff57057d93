"""Craftax and Craftax-Classic as pure ``Env``s, with truncation apart from termination."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.validate import abstract_key
from jaxrl.envs.ids import check_name, check_options
from jaxrl.settings.packages import import_package
from jaxrl.spaces.trees import cast_like
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

NAMES = ("Craftax-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1")
"""Listed here because importing craftax takes seconds and builds textures."""

FAR = 2**30
"""Limit that no episode reaches."""


def list_names() -> list[str]:
    import_package("craftax", "the backend craftax", extra="craftax")
    return [*NAMES]


def make(name: str, options: dict[str, Any]) -> Env:
    """Make a Craftax environment (Matthews et al. 2024).

    Args:
      options: fields of its ``EnvParams`` (``max_timesteps``, ``day_length``, ``god_mode``, ...). All are data.

    Returns:
      An Env. ``max_timesteps`` truncates; death, lava and a defeated boss terminate. ``TimeStep.info`` holds the achievements.
    """
    label = f"craftax:{name}"
    import_package("craftax", label, extra="craftax")
    check_name("craftax", name, NAMES)
    env = _task(name)
    defaults = {field.name: getattr(env.params, field.name) for field in dataclasses.fields(env.params)}
    check_options(label, options, {name: value for name, value in defaults.items() if isinstance(value, bool | int | float)})
    return env._replace(params=env.params.replace(**options))


@functools.cache
def _task(name: str) -> Env:
    task: Any = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name(name, auto_reset=False)
    like = jax.eval_shape(task.reset_env, abstract_key(), task.default_params)[1]

    # craftax mixes weak and strong types: fix all types here.
    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = task.reset_env(key, params)
        return cast_like(state, like), obs

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        obs, state, reward, _, info = task.step_env(key, env_state, action, params)
        terminated = task.is_terminal(state, params.replace(max_timesteps=FAR))
        truncated = state.timestep >= params.max_timesteps
        achievements = {key: jnp.asarray(value, jnp.float32) for key, value in info.items() if key != "discount"}
        return cast_like(state, like), TimeStep(obs, jnp.asarray(reward, jnp.float32), terminated, truncated, achievements)

    params = task.default_params
    observation_space = spaces.Box(0.0, 1.0, task.observation_space(params).shape, np.float32)
    return Env(reset, step, observation_space, spaces.Discrete(task.num_actions), params)

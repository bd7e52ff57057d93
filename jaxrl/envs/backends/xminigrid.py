"""MiniGrid tasks of xminigrid as pure ``Env``s."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.ids import EnvId, check_known, check_name, check_option, format_id, import_package, parse_id
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

NOT_OURS = {"render_mode", "ruleset"}


def list_names() -> list[str]:
    """List the MiniGrid environments. XLand's need rulesets, which are arrays, so ids cannot hold them."""
    xminigrid = import_package("xminigrid", "the backend xminigrid", extra="xminigrid")
    return [name for name in xminigrid.registered_environments() if name.startswith("MiniGrid")]


def family(name: str) -> str:
    return "all"


def make(name: str, options: dict[str, Any]) -> Env:
    """Make a task of xminigrid (Nikulin et al. 2024), without xminigrid's wrappers.

    Args:
      options: fields of its ``EnvParams``: ``height``, ``width``, ``view_size``, ``max_steps``. All are static.

    Returns:
      An Env with observations MultiDiscrete[view_size, view_size, 2]: the kind and the colour of each tile, which networks encode
      as categories. Reaching the goal terminates; ``max_steps`` truncates.
    """
    label = f"xminigrid:{name}"
    check_name("xminigrid", name, list_names())
    _, params = importlib.import_module("xminigrid").make(name)
    defaults = {field.name: getattr(params, field.name) for field in dataclasses.fields(params) if field.name not in NOT_OURS}
    check_known(label, options, defaults)
    for option, value in options.items():
        check_option(label, option, value, defaults[option], at_least=1)
    return _task(format_id(EnvId("xminigrid", name, options)))


@functools.cache
def _task(canonical_id: str) -> Env:
    """Construct an environment and close over it. Cached, so that equal ids share functions and compiled programs."""
    _, name, options, _ = parse_id(canonical_id)
    task, structure = importlib.import_module("xminigrid").make(name, **options)
    constants = importlib.import_module("xminigrid.core.constants")

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state = task.reset(structure, key)
        return state, state.observation.astype(jnp.int32)

    like = jax.eval_shape(reset, jax.eval_shape(lambda: jax.random.key(0)), ())[0]

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        state = jax.tree.map(lambda x, leaf: jnp.asarray(x, leaf.dtype), task.step(structure, env_state, action), like)
        terminated = state.discount == 0
        truncated = state.last() & ~terminated
        return state, TimeStep(state.observation.astype(jnp.int32), state.reward.astype(jnp.float32), terminated, truncated)

    def render(env_state: PyTree, action: Any, params: PyTree) -> np.ndarray:
        return np.asarray(task.render(structure, env_state), np.uint8)

    kinds = np.array([constants.NUM_TILES, constants.NUM_COLORS])
    observation_space = spaces.MultiDiscrete(np.broadcast_to(kinds, task.observation_shape(structure)).copy())
    actions: spaces.Space = spaces.Discrete(task.num_actions(structure))
    limit = structure.max_steps
    return Env(reset, step, observation_space, actions, name=canonical_id, max_episode_steps=limit, render=render, render_fps=10)

"""MiniGrid tasks of xminigrid as pure ``Env``s."""

from __future__ import annotations

import dataclasses
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

NOT_OURS = {"render_mode", "ruleset"}

LEAST = {
    "BlockedUnlockPickUp": (5, 6),
    "DoorKey": (4, 5),
    "FourRooms": (5, 5),
    "LockedRoom": (10, 9),
    "Memory": (7, 7),
    "Playground": (8, 8),
    "Unlock": (4, 5),
    "UnlockPickUp": (4, 5),
}
"""Least height and width by class: smaller grids have no place for all walls, doors, objects and the agent, which xminigrid does
not check. Other classes need two free cells within the walls."""


def list_names() -> list[str]:
    """List the MiniGrid environments. XLand's need rulesets, which are arrays, so ids cannot hold them."""
    xminigrid = import_package("xminigrid", "the backend xminigrid", extra="xminigrid")
    return [name for name in xminigrid.registered_environments() if name.startswith("MiniGrid")]


def make(name: str, options: dict[str, Any]) -> Env:
    """Make a task of xminigrid (Nikulin et al. 2024), without xminigrid's wrappers.

    Args:
      options: fields of its ``EnvParams``: ``height``, ``width``, ``view_size``, ``max_steps``. All are static. ``max_steps``
        defaults to xminigrid's limit for that height and width.

    Returns:
      An Env with observations MultiDiscrete[view_size, view_size, 2]: the kind and the colour of each tile, which networks encode
      as categories. Reaching the goal terminates; ``max_steps`` truncates.
    """
    check_name("xminigrid", name, list_names())
    xminigrid, constants = importlib.import_module("xminigrid"), importlib.import_module("xminigrid.core.constants")
    _, params = xminigrid.make(name)
    defaults = {field.name: getattr(params, field.name) for field in dataclasses.fields(params) if field.name not in NOT_OURS}
    check_options(f"xminigrid:{name}", options, defaults)
    task, structure = xminigrid.make(name, **options)
    of_size = {field: value for field, value in defaults.items() if field != "max_steps"}
    if task.default_params(**of_size).max_steps == params.max_steps:  # the limit follows from the size
        structure = task.default_params(**{**of_size, **options})
    _check_size(f"xminigrid:{name}", type(task).__name__, structure.height, structure.width)

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state = task.reset(structure, key)
        return state, state.observation.astype(jnp.int32)

    like = jax.eval_shape(reset, abstract_key(), ())[0]

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        state = cast_like(task.step(structure, env_state, action), like)
        terminated = state.discount == 0
        truncated = state.last() & ~terminated
        return state, TimeStep(state.observation.astype(jnp.int32), state.reward.astype(jnp.float32), terminated, truncated)

    def render(env_state: PyTree, action: Any, params: PyTree) -> np.ndarray:
        return np.asarray(task.render(structure, env_state), np.uint8)

    kinds = np.array([constants.NUM_TILES, constants.NUM_COLORS])
    observation_space = spaces.MultiDiscrete(np.broadcast_to(kinds, task.observation_shape(structure)).copy())
    actions: spaces.Space = spaces.Discrete(task.num_actions(structure))
    limit = structure.max_steps
    return Env(reset, step, observation_space, actions, max_episode_steps=limit, render=render, render_fps=10)


def _check_size(label: str, kind: str, height: int, width: int) -> None:
    """Raise ValueError if a grid of this size cannot hold what a class of environments puts there."""
    least_height, least_width = LEAST.get(kind, (3, 3))
    if height < least_height or width < least_width:
        wanted = f"must be at least {least_height} and {least_width}, walls included"
        raise ValueError(f"{label}: height={height} and width={width} {wanted}")
    if (height - 2) * (width - 2) < 2:
        raise ValueError(f"{label}: height={height} and width={width} leave one free cell: make one of them at least 4")

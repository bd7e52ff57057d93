"""Helpers for host environments: seeds, validation of actions, 32-bit types. Does not import jax."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.settings.validation import check_count
from jaxrl.types import PyTree

LEARNING = {"reward_clip", "episodic_life"}
"""Options that help learning but distort scores: evaluation opens the environments without them."""

TOLD = ("lives", "reward", "success", "is_success", "cost")
"""Entries of an environment's info that ``HostStep.info`` keeps if present: Atari's lives and its reward before
``reward_clip``; whether a robotics or MetaWorld task is solved; the cost of a step, for constraints. One number each. Other
entries are dropped, as copying them on every row would take time and have no use."""

MOST_ACTIONS = 2**20
"""Most values of a discrete action. An integer with a wider range is treated as a number, not as a choice."""

SLACK = 1e-5
"""Relative tolerance: rounding may carry an action or an observation past its bound."""

_NARROW = {np.dtype(wide): np.dtype(narrow) for wide, narrow in (("f8", "f4"), ("i8", "i4"), ("u8", "u4"))}


def one_line(text: object) -> str:
    """Return a message on one line."""
    return " ".join(str(text).split())


class EnvironmentFailed(RuntimeError):
    """Error: a host environment raised or returned something invalid. The message says which environment."""


def error_text(error: Exception) -> str:
    """Return the message of an error on one line, with its type unless it is an ``EnvironmentFailed``."""
    return one_line(error if isinstance(error, EnvironmentFailed) else f"{type(error).__name__}: {error}")


def narrow(dtype: Any) -> np.dtype:
    """Return the 32-bit version of a dtype, which JAX will use."""
    dtype = np.dtype(dtype)
    return _NARROW.get(dtype, dtype)


def cast(obs: Any, space: spaces.Space) -> PyTree:
    """Cast an observation to the 32-bit dtypes of ``space``. Takes NumPy arrays, and JAX arrays within a program."""
    if isinstance(space, spaces.Dict):
        return {name: cast(obs[name], part) for name, part in space.items()}
    return obs.astype(narrow(space.dtype), copy=False)


def env_seeds(seed: int, num_envs: int, first_id: int = 0) -> list[int]:
    """Return int31 seeds for ``num_envs`` environments: a hash of (seed, i) for environment i, counted from ``first_id``."""
    seed, first_id = check_count("seed", seed, at_least=0), check_count("first_id", first_id, at_least=0)
    return [int(np.random.SeedSequence([seed, first_id + i]).generate_state(1)[0] >> 1) for i in range(num_envs)]


def check_actions(label: str, space: spaces.Space, action: Any, num_envs: int, num_agents: int = 0) -> np.ndarray:
    """Return ``action`` as an array [num_envs, ...], or [num_envs, num_agents, ...] of several agents. Raise ValueError or
    TypeError if it is not in ``space``, Box or discrete."""
    array, agents = np.asarray(action), (num_agents,) * (num_agents > 0)
    shape = (num_envs, *agents, *(space.shape or ()))
    if array.shape != shape:
        row = "one row per environment" + " and agent" * len(agents)
        raise ValueError(f"{label}: action has shape {array.shape}; it must be {shape}: {row}")
    if isinstance(space, spaces.Box):
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{label}: action has dtype {array.dtype}; it must hold real numbers")
        if not np.isfinite(array).all():
            raise ValueError(f"{label}: action holds NaN or infinity in environments {rows_text(~np.isfinite(array))}")
        if ((array >= space.low) & (array <= space.high)).all():  # fast path
            return array
    elif array.dtype.kind not in "iu":
        raise TypeError(f"{label}: action has dtype {array.dtype}; it must hold integers")
    if (wrong := outside(space, array)).any():
        # Equal bounds are shown as one number.
        low, high = (str(x.flat[0]) if x.size and (x == x.flat[0]).all() else one_line(x) for x in bounds_of(space))
        raise ValueError(f"{label}: action is outside [{low}, {high}] in environments {rows_text(wrong)}")
    return array


def outside(space: spaces.Space, action: Any) -> Any:
    """Return a mask of the elements that are outside ``space``, for NumPy or JAX actions [..., *space.shape]."""
    xp, (low, high) = action.__array_namespace__(), bounds_of(space)
    if not isinstance(space, spaces.Box):
        return (action < low) | (action > high)
    slack = SLACK * xp.maximum(xp.abs(action), xp.ones_like(action))
    return ~(xp.isfinite(action) & (action >= low - slack) & (action <= high + slack))


def bounds_of(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest value of a space that has a shape."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    low = np.asarray(space.start)
    return low, low + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1


def parts_of(space: spaces.Dict | spaces.Tuple) -> Iterable[tuple[Any, spaces.Space]]:
    """Return the parts of a space with their names or indices."""
    return space.items() if isinstance(space, spaces.Dict) else enumerate(space)


def rows_text(wrong: np.ndarray) -> str:
    """List the rows of a mask [B, ...] that have a True element, at most eight of them."""
    rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)).tolist()
    return ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Gymnasium's warnings about the precision of bounds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*Box (low|high)'s precision lowered")
        yield

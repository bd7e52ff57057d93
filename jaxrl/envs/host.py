"""What host environments share: seeds, actions checked at the door, 32-bit types. Imports no jax."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.settings.validation import check_count
from jaxrl.types import PyTree

LEARNING = {"reward_clip", "episodic_life"}
"""Options that serve learning, and that no score may know of: evaluation opens the environments without them."""

TOLD = ("lives", "reward", "success", "is_success")
"""What ``HostStep.info`` has of an environment's own, where it has it: Atari's lives, and its reward before ``reward_clip``;
whether a task of robotics or MetaWorld is done. One number each: what else there is would be copied on every row for nobody."""

MOST_ACTIONS = 2**20
"""An integer with a wider range than this is a number, not a choice."""

SLACK = 1e-5
"""Relative: rounding may carry an action past its bound."""

_NARROW = {np.dtype(wide): np.dtype(narrow) for wide, narrow in (("f8", "f4"), ("i8", "i4"), ("u8", "u4"))}


class EnvironmentFailed(RuntimeError):
    """An environment on the host raised, or gave what it may not; the message says which one of them."""


def narrow(dtype: Any) -> np.dtype:
    """In 32 bits, as JAX will hold it."""
    dtype = np.dtype(dtype)
    return _NARROW.get(dtype, dtype)


def cast(obs: Any, dtypes: PyTree) -> PyTree:
    """An observation in these types; arrays of NumPy's, or of a program's."""
    if isinstance(dtypes, dict):
        return {name: cast(obs[name], part) for name, part in dtypes.items()}
    return obs.astype(dtypes, copy=False)


def env_seeds(seed: int, num_envs: int, first_id: int = 0) -> list[int]:
    """int31 seeds for ``num_envs`` environments: a hash of (seed, i) for environment i, from ``first_id`` on."""
    seed, first_id = check_count("seed", seed, at_least=0), check_count("first_id", first_id, at_least=0)
    return [int(np.random.SeedSequence([seed, first_id + i]).generate_state(1)[0] >> 1) for i in range(num_envs)]


def check_actions(label: str, space: spaces.Space, action: Any, num_envs: int) -> np.ndarray:
    """``action`` as an array [num_envs, ...] of numbers that ``space``, a Box or one of choices, holds.

    Raises:
      ValueError: another shape; NaN, infinity, or what is outside the space.
      TypeError: another kind of numbers.
    """
    array = np.asarray(action)
    shape = (num_envs, *(space.shape or ()))
    if array.shape != shape:
        raise ValueError(f"{label}: action has shape {array.shape}, and must have {shape}: one row per environment")
    if isinstance(space, spaces.Box):
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{label}: action has dtype {array.dtype}, and must be of real numbers")
        if not np.isfinite(array).all():
            raise ValueError(f"{label}: action holds NaN or infinity in environments {rows_text(~np.isfinite(array))}")
        if ((array >= space.low) & (array <= space.high)).all():  # as nearly always, and quickly
            return array
    elif array.dtype.kind not in "iu":
        raise TypeError(f"{label}: action has dtype {array.dtype}, and must be of integers")
    if (wrong := outside(space, array)).any():
        bounds = [_bound(x) for x in action_bounds(space)]
        raise ValueError(f"{label}: action is outside [{bounds[0]}, {bounds[1]}] in environments {rows_text(wrong)}")
    return array


def outside(space: spaces.Space, action: Any) -> Any:
    """Where an array of actions [..., *space.shape], NumPy's or JAX's, holds what is not in ``space``."""
    xp, (low, high) = action.__array_namespace__(), action_bounds(space)
    if not isinstance(space, spaces.Box):
        return (action < low) | (action > high)
    slack = SLACK * xp.maximum(xp.abs(action), xp.ones_like(action))
    return ~(xp.isfinite(action) & (action >= low - slack) & (action <= high + slack))


def action_bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest action of a Box, or of choices."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    low = np.asarray(space.start)
    return low, low + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1


def _bound(values: np.ndarray) -> str:
    """One number where all are equal."""
    same = values.size and (values == values.flat[0]).all()
    return str(values.flat[0] if same else " ".join(str(values).split()))


def rows_text(wrong: np.ndarray) -> str:
    """Which rows of a mask [B, ...] hold something, the first few of them."""
    rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)).tolist()
    return ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")


@contextmanager
def quiet() -> Iterator[None]:
    """Without gymnasium's remarks on the precision of bounds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*Box (low|high)'s precision lowered")
        yield

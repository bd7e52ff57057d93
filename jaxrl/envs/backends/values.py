"""Values of Gymnasium's spaces as rows of a batch, with checks of what environments return. Does not import jax."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.envs.host import EnvironmentFailed, narrow, one_line
from jaxrl.types import PyTree


class Wrong(ValueError):
    """Error: an environment returned something invalid."""


def failure_of(where: str, error: Exception) -> EnvironmentFailed:
    """Return the exception to raise for an error of the environment that ``where`` names."""
    if isinstance(error, Wrong):
        return EnvironmentFailed(f"{where}: {error}")
    *_, last = traceback.extract_tb(error.__traceback__)
    name, place = type(error).__name__, f"{last.filename}, line {last.lineno}"
    return EnvironmentFailed(f"{where} raised {name}: {one_line(error)} ({place})")


def native(space: Any, action: np.ndarray) -> np.ndarray:
    """Convert actions that count from 0 to the dtype and first value of an environment's space. The result is a new array."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return np.clip(action.astype(space.dtype), space.low, space.high)  # exact bounds: some environments assert them
    start = space.low.astype(np.int64) if isinstance(space, spaces.Box) else getattr(space, "start", 0)
    return (action + start).astype(space.dtype)


def empty(space: spaces.Space, num_envs: int) -> PyTree:
    """Return zero arrays for a batch of observations."""
    if isinstance(space, spaces.Dict):
        return {name: empty(part, num_envs) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(empty(part, num_envs) for part in space)
    return np.zeros((num_envs, *(space.shape or ())), narrow(space.dtype))


def write(batch: PyTree, i: int, value: Any, subject: str = "obs") -> None:
    """Write one observation to row ``i``. Raises where NumPy would broadcast it, truncate it, or wrap integers."""
    if isinstance(batch, dict | tuple):
        parts = batch.items() if isinstance(batch, dict) else enumerate(batch)
        if not isinstance(value, Mapping if isinstance(batch, dict) else list | tuple) or len(value) != len(batch):
            raise Wrong(f"{subject} is {type(value).__name__}, but observation_space has {len(batch)} parts there")
        for name, part in parts:
            if isinstance(batch, dict) and name not in value:
                raise Wrong(f"{subject} has no {name!r}, but observation_space does")
            write(part, i, value[name], f"{subject}[{name!r}]")
        return
    array, to = np.asarray(value), batch.dtype
    fits = array.dtype == to or array.dtype.kind in ("biuf" if to.kind == "f" else "biu")
    if array.shape != batch.shape[1:] or not fits:
        raise Wrong(
            f"{subject} is {array.dtype}{[*array.shape]}, but observation_space is {to}{[*batch.shape[1:]]}: they must agree"
        )
    if (limits := _limits(array.dtype, to)) is not None and array.size:
        low, high = int(array.min()), int(array.max())
        if low < limits[0] or high > limits[1]:
            raise Wrong(
                f"{subject} has integers from {low} to {high}, but observation_space is {to}{[*batch.shape[1:]]}: they must be "
                f"within [{limits[0]}, {limits[1]}]; use a space with wider integers, of at most 32 bits, or with floats"
            )
    batch[i] = array


@functools.cache
def _limits(dtype: np.dtype, to: np.dtype) -> tuple[int, int] | None:
    """Return the integers that ``to`` can hold; None if it holds all of ``dtype``, or is not for integers."""
    if to.kind not in "iu" or np.can_cast(dtype, to):
        return None
    return int(np.iinfo(to).min), int(np.iinfo(to).max)


def flag(name: str, value: Any) -> bool:
    """Return a boolean flag. Raises for other values, such as None or "no", whose truth value would mislead."""
    if not isinstance(value, bool | np.bool_):
        array = np.asarray(value)
        if array.ndim or array.dtype.kind not in "biu" or array not in (0, 1):
            raise Wrong(f"{name} is {value!r}; it must be True or False")
    return bool(value)


def number(name: str, value: Any) -> Any:
    """Return a scalar or an array without axes. Raises for anything else."""
    is_scalar = isinstance(value, float | int | np.number | np.bool_)
    if not is_scalar and (np.ndim(value) or np.asarray(value).dtype.kind not in "biuf"):
        raise Wrong(f"{name} is {type(value).__name__}{list(np.shape(value))}; it must be one number")
    return value

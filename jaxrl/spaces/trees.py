"""Spaces and trees of arrays: zeros, shapes, and conversion of spaces to plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.types import PyTree


def zeros(space: spaces.Space, batch_shape: tuple[int, ...] = ()) -> PyTree:
    """Return zeros shaped like a batch of values of ``space``; 64-bit types become 32-bit."""
    if isinstance(space, spaces.Dict):
        return {name: zeros(part, batch_shape) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(zeros(part, batch_shape) for part in space)
    if space.shape is None or space.dtype is None:
        raise TypeError(f"{space} has no fixed shape and dtype: use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")
    return jnp.zeros(batch_shape + space.shape, jax.dtypes.canonicalize_dtype(space.dtype))


def bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Return f32 bounds of a Box, rounded inwards if its dtype is more precise."""
    low, high = (np.asarray(bound, np.float32) for bound in (space.low, space.high))
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    return low, np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)


def show_shapes(tree: PyTree) -> str:
    """Format a tree of arrays (or shapes) in short form: ``{'a': float32[3]}``."""
    text = str(jax.tree.map(_Short, tree)) if tree is not None else "nothing"
    return text if len(text) <= 300 else text[:297] + "..."


def space_text(space: spaces.Space, *, bounds: bool = True) -> str:
    """Describe a space in one line: ``Box(4) float32 [-1, 1]``, with its bounds if wanted and if they are finite and uniform."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{name}: {space_text(part, bounds=bounds)}' for name, part in space.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(space_text(part, bounds=bounds) for part in space)})"
    if not isinstance(space, spaces.Box):
        return " ".join(str(space).split())
    shape, low, high = ", ".join(map(str, space.shape)), np.unique(space.low), np.unique(space.high)
    shown = f" [{low[0]:g}, {high[0]:g}]" if bounds and space.is_bounded() and low.size == high.size == 1 else ""
    return f"Box({shape}) {space.dtype}{shown}"


def same_shapes(a: PyTree, b: PyTree) -> bool:
    """Return True if two trees of arrays (or shapes) agree in structure, shapes and dtypes."""
    kinds = [[(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)] for tree in (a, b)]
    return jax.tree.structure(a) == jax.tree.structure(b) and kinds[0] == kinds[1]


def cast_like(tree: PyTree, like: PyTree) -> PyTree:
    """Convert the leaves of a tree to strongly typed JAX arrays with the dtypes of ``like``."""
    return jax.tree.map(lambda x, leaf: jnp.asarray(x, leaf.dtype), tree, like)


class _Short:
    """Prints as ``float32[3]``."""

    def __init__(self, value: Any) -> None:
        self.text = f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else type(value).__name__

    def __repr__(self) -> str:
        return self.text


def describe_space(space: spaces.Space) -> dict[str, Any]:
    """Convert a space to plain data (JSON)."""
    kind = type(space).__name__
    if isinstance(space, spaces.Dict):
        return {"kind": kind, "spaces": {name: describe_space(part) for name, part in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": kind, "spaces": [describe_space(part) for part in space]}
    dtype = np.dtype(space.dtype).name if space.dtype is not None else None
    if isinstance(space, spaces.Discrete):
        return {"kind": kind, "n": int(space.n), "start": int(space.start), "dtype": dtype}
    if isinstance(space, spaces.Box):
        return {"kind": kind, "low": _bounds(space.low), "high": _bounds(space.high), "shape": list(space.shape), "dtype": dtype}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": kind, "n": np.asarray(space.n).tolist()}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": kind, "nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": dtype}
    raise TypeError(f"{space} cannot be described: use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")


def realize_space(data: Mapping[str, Any]) -> spaces.Space:
    """Invert ``describe_space``.

    Raises:
      ValueError: the data does not describe a space.
    """
    try:
        return _realized(data)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:  # Gymnasium asserts
        shown = str(data)
        shown = shown if len(shown) < 80 else f"{shown[:77]}..."
        raise ValueError(f"{shown} does not describe a space ({type(error).__name__}: {error})") from None


def _realized(data: Mapping[str, Any]) -> spaces.Space:
    kind, rest = data["kind"], {name: value for name, value in data.items() if name != "kind"}
    if kind == "Dict":
        return spaces.Dict({name: _realized(part) for name, part in rest["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_realized(part) for part in rest["spaces"]])
    if "dtype" in rest:
        rest["dtype"] = np.dtype(rest["dtype"])
    if kind == "Box":
        shape = tuple(rest["shape"])
        low, high = (np.broadcast_to(np.array(rest[name], rest["dtype"]), shape) for name in ("low", "high"))
        return spaces.Box(low, high, dtype=rest["dtype"])
    makers: dict[str, Any] = {
        "Discrete": spaces.Discrete,
        "MultiBinary": spaces.MultiBinary,
        "MultiDiscrete": spaces.MultiDiscrete,
    }
    return makers[kind](**{name: np.array(x) if isinstance(x, list) and name != "n" else x for name, x in rest.items()})


def _bounds(values: np.ndarray) -> Any:
    """Shorten equal bounds to one number, and convert to text if any are infinite, since JSON has no infinity."""
    same = values.size > 0 and bool((values == values.flat[0]).all())
    shown = np.asarray(values.flat[0] if same else values)
    return (shown if np.isfinite(shown).all() else shown.astype(str)).tolist()

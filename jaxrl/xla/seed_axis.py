"""Vectorisation of functions over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Axes = int | tuple[int | None, ...]


def over_seeds(num_seeds: int | None) -> Callable[..., Callable[..., Any]]:
    """Return a transformation that maps a function of one seed over a leading axis [num_seeds]; None for no such axis."""
    if num_seeds is None:
        return lambda function, in_axes=0: function
    return alone if num_seeds == 1 else jax.vmap


def alone(function: Callable[..., Any], in_axes: Axes = 0) -> Callable[..., Any]:
    """Replace ``vmap`` over an axis of size one by removing the axis: matmuls with a batch of one are a tenth slower."""

    def mapped(*args: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else in_axes
        unbatched = [arg if axis is None else jax.tree.map(lambda x: x[0], arg) for arg, axis in zip(args, axes, strict=True)]
        return jax.tree.map(lambda x: jnp.asarray(x)[None], function(*unbatched))

    return mapped


def per_seed(hyperparams: Mapping[str, Any] | None, num_seeds: int) -> dict[str, np.ndarray]:
    """Broadcast hyperparameters to change, one value for all seeds or one for each, to f32[num_seeds]."""

    def of_all(x: Any) -> Any:
        xp: Any = jnp if isinstance(x, jax.Array) else np  # a NumPy array starts no backend
        return xp.broadcast_to(xp.asarray(x, xp.float32), (num_seeds,))

    return {name: of_all(x) for name, x in (hyperparams or {}).items()}

"""Vectorisation of functions over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from jaxrl.types import Array

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


def in_groups(size: int) -> Callable[..., Callable[..., Any]]:
    """Return a ``vmap`` over groups of ``size`` seeds, which take turns in a loop. Groups of one are computed as by ``alone``.

    The function takes a state first, and returns a tuple whose first element replaces it. The states of all seeds are updated in
    place if they are donated, and if all results come from a loop over the state. Those of a group are copied before and after
    its turn. The number of seeds is a multiple of ``size``.
    """

    def over(function: Callable[..., Any], in_axes: Axes = 0) -> Callable[..., Any]:
        of_group = (alone if size == 1 else jax.vmap)(function, in_axes=in_axes)

        def mapped(states: Any, *args: Any) -> Any:
            axes = (in_axes,) * (1 + len(args)) if isinstance(in_axes, int) else in_axes
            number = len(jax.tree.leaves(states)[0])
            if number == size:
                return of_group(states, *args)

            def turn(start: Array, states: Any) -> Any:
                part = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
                group = [x if axis is None else jax.tree.map(part, x) for x, axis in zip((states, *args), axes, strict=True)]
                return of_group(*group)

            def body(group: Array, results: Any) -> Any:
                write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=group * size, axis=0)
                return jax.tree.map(write, results, turn(group * size, results[0]))

            rest = jax.eval_shape(turn, jnp.int32(0), states)[1:]
            empty = jax.tree.map(lambda x: jnp.zeros((number, *x.shape[1:]), x.dtype), rest)
            return jax.lax.fori_loop(0, number // size, body, (states, *empty))

        return mapped

    return over


def per_seed(hyperparams: Mapping[str, Any] | None, num_seeds: int) -> dict[str, np.ndarray]:
    """Broadcast hyperparameters to change, one value for all seeds or one for each, to f32[num_seeds]."""

    def of_all(x: Any) -> Any:
        xp: Any = jnp if isinstance(x, jax.Array) else np  # a NumPy array starts no backend
        return xp.broadcast_to(xp.asarray(x, xp.float32), (num_seeds,))

    return {name: of_all(x) for name, x in (hyperparams or {}).items()}


@custom_vmap
def any_seed(condition: Array) -> Array:
    """Return ``condition``, bool[]; under ``vmap`` whether it holds for any seed, which is then one value for all.

    In the condition of a ``while_loop``, it makes the loop run until the last seed has finished. Without it, ``vmap`` would
    select between the old and the new carry of each seed at every step.
    """
    return condition


@any_seed.def_vmap
def _of_all(axis_size: int, in_batched: Any, condition: Array) -> tuple[Array, bool]:
    return any_seed(condition.any(0) if in_batched[0] else condition), False


@custom_vmap
def more_than(number: Array, condition: Array) -> Array:
    """Return whether ``condition``, bool[], holds for more than ``number``, i32[], of the elements of the innermost ``vmap``.

    It is one value for all of them. For outer axes, it is as ``any_seed``.
    """
    return any_seed(condition.astype(jnp.int32) > number)


@more_than.def_vmap
def _of_elements(axis_size: int, in_batched: Any, number: Array, condition: Array) -> tuple[Array, bool]:
    count = condition.sum(0, jnp.int32) if in_batched[1] else axis_size * condition.astype(jnp.int32)
    return any_seed(count > number), False

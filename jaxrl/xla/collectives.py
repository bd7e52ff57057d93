"""Collectives over mapped axes: one per dtype, and the types of values that differ between devices."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
from jax.flatten_util import ravel_pytree

from jaxrl.types import Array, PyTree


def together(reduction: Callable[[Array, str], Array], tree: PyTree, axis_name: str) -> PyTree:
    """Apply ``reduction`` (psum, pmax, …) over a mapped axis to all leaves, with one collective per dtype, not one per leaf."""
    leaves, structure = jax.tree.flatten(tree)
    results = list(leaves)
    for dtype in sorted({x.dtype for x in leaves}, key=str):
        places = [i for i, x in enumerate(leaves) if x.dtype == dtype]
        packed, unpack = ravel_pytree([leaves[i] for i in places])
        for i, x in zip(places, unpack(reduction(packed, axis_name)), strict=True):
            results[i] = x
    return structure.unflatten(results)


def varying(tree: PyTree, *axes: str) -> PyTree:
    """Type ``tree`` as varying between the devices of these axes, under ``shard_map``.

    Under ``shard_map``, the gradient for parameters typed as equal on all devices is already summed over the axis, so that its
    pmean would be n times too large. With parameters typed as varying, each device has a separate gradient. vmap has no such
    types.
    """
    axes = tuple(axis for axis in axes if axis in jax.sharding.get_abstract_mesh().manual_axes)

    def cast(x: Array, axis: str) -> Array:
        try:
            return jax.lax.pcast(x, axis, to="varying")
        except ValueError:  # already varying
            return x

    return jax.tree.map(lambda x: functools.reduce(cast, axes, x), tree)

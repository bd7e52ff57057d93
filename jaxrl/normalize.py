"""Running statistics for observations and rewards, held in the learner's state.

Rollouts stay raw. A rule normalises with the statistics of its ``Policy`` when it acts and when it learns from that rollout, and
refreshes them from the valid rows afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.spaces import per_row
from jaxrl.types import Array, PyTree

EPSILON = 1e-8


class RunningMoments(NamedTuple):
    """Mean and variance of a stream, per element of its leaves (Chan et al. 1979 for the merge of two parts)."""

    count: Array  # type: ignore[assignment]  # a field may hide tuple.count
    """f32[]: rows so far; starts at a small positive number so that nothing divides by zero."""
    mean: PyTree
    variance: PyTree


def init_moments(example: PyTree) -> RunningMoments:
    """Moments for rows like ``example`` (one unbatched row; arrays or shapes): mean 0, variance 1 until rows arrive."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), example)
    return RunningMoments(jnp.full((), 1e-4, jnp.float32), zeros, jax.tree.map(jnp.ones_like, zeros))


def update_moments(moments: RunningMoments, rows: PyTree, where: Array, axis_name: str | None = None) -> RunningMoments:
    """Take in ``rows`` (leaves [*where.shape, ...]) where the mask is true; over all devices when an axis is named."""

    def total(x: Array) -> Array:
        return x if axis_name is None else jax.lax.psum(x, axis_name)

    lead = tuple(range(where.ndim))
    count = total(where.sum(dtype=jnp.float32))
    merged = moments.count + count

    def one(mean: Array, variance: Array, x: Array) -> tuple[Array, Array]:
        keep, x = per_row(where, x), x.astype(jnp.float32)
        batch_mean = total(jnp.where(keep, x, 0.0).sum(lead)) / jnp.maximum(count, 1.0)
        batch_square = total(jnp.where(keep, (x - batch_mean) ** 2, 0.0).sum(lead))
        delta = batch_mean - mean
        square = variance * moments.count + batch_square + delta**2 * moments.count * count / merged
        return mean + delta * count / merged, square / merged

    rows = jax.tree.map(lambda mean, x: None if mean is None else x, moments.mean, rows, is_leaf=_is_none)
    means, structure = jax.tree.flatten(moments.mean)
    variances, leaves = (structure.flatten_up_to(tree) for tree in (moments.variance, rows))
    pairs = [one(mean, variance, x) for mean, variance, x in zip(means, variances, leaves, strict=True)]
    return RunningMoments(merged, structure.unflatten([m for m, _ in pairs]), structure.unflatten([v for _, v in pairs]))


def _is_none(x: object) -> bool:
    return x is None


def normalize(moments: RunningMoments, x: PyTree, clip: float = 10.0) -> PyTree:
    """(x − mean) / std per element, clipped to ±``clip``; the statistics broadcast over leading axes.

    Where the moments hold None in place of a leaf, that leaf of ``x`` stays as it is.
    """

    def one(mean: Array | None, variance: Array, x: Array) -> Array:
        if mean is None:
            return x
        return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + EPSILON), -clip, clip)

    return jax.tree.map(one, moments.mean, moments.variance, x, is_leaf=_is_none)

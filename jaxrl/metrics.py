"""Metrics as sums, counts, minima and maxima of fixed shape inside the trace; ratios are taken on the host.

``merge`` combines chunks, seeds, devices and hosts. ``to_floats`` converts the result to floats; a metric that counted nothing is
None (a blank in a log), never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.types import Array, Max, Mean, Metrics, Min
from jaxrl.xla.collectives import together


def masked_mean(value: Array, where: Array) -> Mean:
    """Return the ``Mean`` of ``value`` over the elements where ``where``, of the same shape, is true."""
    return Mean(jnp.where(where, value, 0).sum(dtype=jnp.float32), where.sum(dtype=jnp.int32))


def scalar(value: Array) -> Mean:
    """Return the ``Mean`` of a quantity with one number per update; each element of ``value`` counts as one update."""
    value = jnp.asarray(value, jnp.float32)
    return Mean(value.sum(), jnp.full((), value.size, jnp.int32))


def scalars(values: Mapping[str, Array | Mean]) -> Metrics:
    """Wrap plain scalars as ``Mean``; leave those that are ``Mean`` already."""
    return {name: value if isinstance(value, Mean) else scalar(value) for name, value in values.items()}


class Stacked(struct.PyTreeNode):
    """Scalars in one array, so that a scan over updates writes all of them with one kernel."""

    values: Array
    """f32[..., number of names]"""
    names: tuple[str, ...] = struct.field(pytree_node=False)


def stack(values: Mapping[str, Array]) -> Stacked:
    """Stack scalars, f32[] each."""
    return Stacked(jnp.stack([jnp.asarray(value, jnp.float32) for value in values.values()]), tuple(values))


def unstack(stacked: Stacked) -> dict[str, Array]:
    """Return the scalars by name, f32[...] each."""
    return {name: stacked.values[..., i] for i, name in enumerate(stacked.names)}


def masked_min(value: Array, where: Array) -> Min:
    return Min(jnp.where(where, value, jnp.inf).min())


def masked_max(value: Array, where: Array) -> Max:
    return Max(jnp.where(where, value, -jnp.inf).max())


def _is_metric(x: Any) -> bool:
    return isinstance(x, Mean | Min | Max)


def identity(metrics: Mapping[str, Mean | Min | Max]) -> Metrics:
    """Return the neutral element of ``merge`` for metrics of this structure (arrays or ``jax.eval_shape`` results)."""

    def empty(metric: Mean | Min | Max) -> Mean | Min | Max:
        if isinstance(metric, Mean):
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metric)
        return type(metric)(jnp.full_like(metric.value, jnp.inf if isinstance(metric, Min) else -jnp.inf))

    return jax.tree.map(empty, metrics, is_leaf=_is_metric)


def merge(a: Metrics, b: Metrics) -> Metrics:
    """Combine the metrics of two chunks, elementwise over any leading axes. NumPy arrays keep their wider types."""

    def pair(x: Any, y: Any) -> Any:
        if isinstance(x, Mean):
            return Mean(x.sum + y.sum, x.count + y.count)
        numpy: Any = np if isinstance(x.value, np.ndarray | np.generic) else jnp
        return type(x)((numpy.minimum if isinstance(x, Min) else numpy.maximum)(x.value, y.value))

    return jax.tree.map(pair, a, b, is_leaf=_is_metric)


def widened(metrics: Metrics) -> Metrics:
    """Convert to f64 and i64 NumPy arrays, because sums over many calls of a program may not fit into 32 bits."""
    return jax.tree.map(lambda x: np.asarray(x, np.int64 if np.issubdtype(x.dtype, np.integer) else np.float64), metrics)


def only_if(condition: Array | bool, metrics: Mapping[str, Mean | Min | Max]) -> Metrics:
    """Return ``metrics`` if the condition (bool[]) holds, else the neutral element of ``merge``."""
    return jax.tree.map(lambda x, nothing: jnp.where(condition, x, nothing), metrics, identity(metrics))


def reduce(metrics: Metrics, axis: int | tuple[int, ...] | None = 0) -> Metrics:
    """Combine metrics over an axis (minibatches, updates, seeds), or over all axes if ``axis`` is None."""

    def fold(metric: Any) -> Any:
        if isinstance(metric, Mean):
            return Mean(metric.sum.sum(axis), metric.count.sum(axis))
        return type(metric)((jnp.min if isinstance(metric, Min) else jnp.max)(metric.value, axis))

    return jax.tree.map(fold, metrics, is_leaf=_is_metric)


def all_reduce(metrics: Metrics, axis_name: str | None) -> Metrics:
    """Combine metrics over a mapped device axis; return them unchanged if ``axis_name`` is None."""
    if axis_name is None:
        return metrics
    means = {name: x for name, x in metrics.items() if isinstance(x, Mean)}
    most = {name: x.value for name, x in metrics.items() if isinstance(x, Max)}
    least = {name: -x.value for name, x in metrics.items() if isinstance(x, Min)}
    means = together(jax.lax.psum, means, axis_name)
    most, least = together(jax.lax.pmax, (most, least), axis_name)
    return means | {name: Max(x) for name, x in most.items()} | {name: Min(-x) for name, x in least.items()}


def to_floats(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Convert metrics to floats on the host, combined over all their axes: ``{key: float, or None if nothing was counted}``."""

    def close(metric: Any) -> float | None:
        if isinstance(metric, Mean):
            count = np.sum(np.asarray(metric.count), dtype=np.float64)
            return float(np.sum(np.asarray(metric.sum), dtype=np.float64) / count) if count else None
        best = (np.min if isinstance(metric, Min) else np.max)(np.asarray(metric.value))
        return float(best) if np.isfinite(best) else None

    return {name: close(metric) for name, metric in metrics.items()}

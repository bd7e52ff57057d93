"""Metrics that stay open: masked sums of fixed shape inside the trace, ratios on the host.

Chunks, seeds, devices and hosts all combine by ``merge``; ``to_floats`` closes them. Where nothing was counted the result is
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
from jaxrl.xla.ordered_collectives import together


def masked_mean(value: Array, where: Array) -> Mean:
    """The open mean of ``value`` over the elements where ``where`` is true (same shape)."""
    return Mean(jnp.where(where, value, 0).sum(dtype=jnp.float32), where.sum(dtype=jnp.int32))


def scalar(value: Array) -> Mean:
    """A quantity that is one number per update; of an array of updates each element counts one."""
    value = jnp.asarray(value, jnp.float32)
    return Mean(value.sum(), jnp.full((), value.size, jnp.int32))


def scalars(values: Mapping[str, Array | Mean]) -> Metrics:
    """``scalar`` of each that is no open mean yet."""
    return {name: value if isinstance(value, Mean) else scalar(value) for name, value in values.items()}


class Stacked(struct.PyTreeNode):
    """Scalars as one array, so that a scan over updates writes them all by one kernel."""

    values: Array
    """f32[..., number of names]"""
    names: tuple[str, ...] = struct.field(pytree_node=False)


def stack(values: Mapping[str, Array]) -> Stacked:
    """Scalars, f32[] each."""
    return Stacked(jnp.stack([jnp.asarray(value, jnp.float32) for value in values.values()]), tuple(values))


def unstack(stacked: Stacked) -> dict[str, Array]:
    """The scalars by their names, f32[...] each."""
    return {name: stacked.values[..., i] for i, name in enumerate(stacked.names)}


def masked_min(value: Array, where: Array) -> Min:
    return Min(jnp.where(where, value, jnp.inf).min())


def masked_max(value: Array, where: Array) -> Max:
    return Max(jnp.where(where, value, -jnp.inf).max())


def _is_metric(x: Any) -> bool:
    return isinstance(x, Mean | Min | Max)


def identity(metrics: Mapping[str, Mean | Min | Max]) -> Metrics:
    """The neutral element of ``merge`` for metrics of this structure (arrays or ``jax.eval_shape`` results)."""

    def empty(metric: Mean | Min | Max) -> Mean | Min | Max:
        if isinstance(metric, Mean):
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metric)
        return type(metric)(jnp.full_like(metric.value, jnp.inf if isinstance(metric, Min) else -jnp.inf))

    return jax.tree.map(empty, metrics, is_leaf=_is_metric)


def merge(a: Metrics, b: Metrics) -> Metrics:
    """Combine metrics of two chunks, elementwise over any leading axes. What NumPy holds keeps its wider types."""

    def pair(x: Any, y: Any) -> Any:
        if isinstance(x, Mean):
            return Mean(x.sum + y.sum, x.count + y.count)
        numpy: Any = np if isinstance(x.value, np.ndarray | np.generic) else jnp
        return type(x)((numpy.minimum if isinstance(x, Min) else numpy.maximum)(x.value, y.value))

    return jax.tree.map(pair, a, b, is_leaf=_is_metric)


def widened(metrics: Metrics) -> Metrics:
    """On the host, as f64 and i64: what many calls of a program count together need not fit into 32 bits."""
    return jax.tree.map(lambda x: np.asarray(x, np.int64 if np.issubdtype(x.dtype, np.integer) else np.float64), metrics)


def only_if(condition: Array | bool, metrics: Mapping[str, Mean | Min | Max]) -> Metrics:
    """``metrics`` if the condition (bool[]) holds, else the neutral element of ``merge``."""
    return jax.tree.map(lambda x, nothing: jnp.where(condition, x, nothing), metrics, identity(metrics))


def reduce(metrics: Metrics, axis: int | tuple[int, ...] | None = 0) -> Metrics:
    """Combine over an axis (minibatches, updates, seeds); None combines everything."""

    def fold(metric: Any) -> Any:
        if isinstance(metric, Mean):
            return Mean(metric.sum.sum(axis), metric.count.sum(axis))
        return type(metric)((jnp.min if isinstance(metric, Min) else jnp.max)(metric.value, axis))

    return jax.tree.map(fold, metrics, is_leaf=_is_metric)


def all_reduce(metrics: Metrics, axis_name: str | None) -> Metrics:
    """Combine over a mapped device axis, when one is named."""
    if axis_name is None:
        return metrics
    means = {name: x for name, x in metrics.items() if isinstance(x, Mean)}
    most = {name: x.value for name, x in metrics.items() if isinstance(x, Max)}
    least = {name: -x.value for name, x in metrics.items() if isinstance(x, Min)}
    means = together(jax.lax.psum, means, axis_name)
    most, least = together(jax.lax.pmax, (most, least), axis_name)
    return means | {name: Max(x) for name, x in most.items()} | {name: Min(-x) for name, x in least.items()}


def to_floats(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Close metrics on the host, combined over all their axes: ``{key: float, or None where nothing was counted}``."""

    def close(metric: Any) -> float | None:
        if isinstance(metric, Mean):
            count = np.sum(np.asarray(metric.count), dtype=np.float64)
            return float(np.sum(np.asarray(metric.sum), dtype=np.float64) / count) if count else None
        best = (np.min if isinstance(metric, Min) else np.max)(np.asarray(metric.value))
        return float(best) if np.isfinite(best) else None

    return {name: close(metric) for name, metric in metrics.items()}

"""Gradients: means over valid rows and devices, and accumulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxrl.types import Array, PyTree
from jaxrl.xla.cache_blocking import cut_to_cache
from jaxrl.xla.collectives import varying

LossFn: TypeAlias = Callable[[PyTree, Any], tuple[Array, dict[str, Array]]]
"""(params, batch of the algorithm's loss) -> (loss to add, scalars to log)."""


# --------------------------------------------------------------------------------------------------------------- over devices


def pmean(x: PyTree, axis_name: str | None) -> PyTree:
    """Return the mean over the devices of a mapped axis, or ``x`` itself if ``axis_name`` is None."""
    return x if axis_name is None else jax.lax.pmean(x, axis_name)


def gathered(x: Array, axis_name: str | None) -> Array:
    """Return the arrays [N, ...] of all devices of a mapped axis, one after the other, the same on each device."""
    if axis_name is None:
        return x
    # A sum, because reductions are ordered on a CPU and gathers are not (``jaxrl.xla.ordered_collectives``).
    empty = jnp.zeros((jax.lax.axis_size(axis_name), *x.shape), x.dtype)
    return jax.lax.psum(empty.at[jax.lax.axis_index(axis_name)].set(x), axis_name).reshape(-1, *x.shape[1:])


def valid_mean(valid: Array, axis_name: str | None = None) -> Callable[[Array], Array]:
    """Return a function that maps x [..., *rows] to its mean over valid rows, [...]; 0 if no row is valid.

    On several devices it divides this device's sum by the average count per device. The ``pmean`` of the result, or of its
    gradient, is then the mean over all valid rows.
    """
    count = _average_count(valid.sum(dtype=jnp.float32), axis_name)
    return lambda x: _sum_of_rows(x, valid) / count


def valid_means(
    loss: Array, logged: Mapping[str, Array], valid: Array, axis_name: str | None = None
) -> tuple[Array, dict[str, Array]]:
    """Return ``valid_mean`` of a loss, [*rows], and of the logged values of the same rows, which are not differentiated.

    The logged values and the count of rows share one reduction.
    """
    *sums, count = _sum_of_rows(jax.lax.stop_gradient(jnp.stack([*logged.values(), jnp.ones_like(loss)])), valid)
    count = _average_count(count, axis_name)
    return _sum_of_rows(loss, valid) / count, {name: total / count for name, total in zip(logged, sums, strict=True)}


def _sum_of_rows(x: Array, valid: Array) -> Array:
    return jnp.where(valid, x, 0.0).sum(tuple(range(-valid.ndim, 0)))


def _average_count(count: Array, axis_name: str | None) -> Array:
    return _at_least_a_row(pmean(count, axis_name), axis_name)


def _at_least_a_row(average: Array, axis_name: str | None) -> Array:
    # With one valid row on all devices together, the average count per device is less than 1.
    return jnp.maximum(average, 1.0 if axis_name is None else 1.0 / jax.lax.axis_size(axis_name))


def mean_gradient(loss_fn: Callable[[PyTree], tuple[Array, Any]], params: PyTree, axis_name: str | None) -> tuple[PyTree, Any]:
    """Return ``(gradient, aux)`` of ``loss_fn(params) -> (loss, aux)``, with the gradient averaged over a named device axis."""
    if axis_name is None:
        return jax.grad(loss_fn, has_aux=True)(params)
    gradient, aux = jax.grad(loss_fn, has_aux=True)(varying(params, axis_name))
    return jax.lax.pmean(gradient, axis_name), aux


@jax.named_scope("descend")
def accumulated_gradient(
    loss_fn: Callable[..., tuple[Array, dict[str, Array]]],
    params: PyTree,
    batch: PyTree,
    valid: Array,
    num_parts: int,
    axis_name: str | None = None,
    *,
    may_cut: bool = False,
) -> tuple[PyTree, dict[str, Array]]:
    """Accumulate the gradient of a loss that is a mean over valid rows, part by part; return ``(gradient, metrics)``.

    Only the activations of one part are in memory. Parts are weighted by their number of valid rows, so the result is the
    gradient of the whole batch. Devices communicate twice: to count all valid rows, and to average.

    Args:
      loss_fn: (params, batch, axis_name) -> (loss, metrics), over the rows of all devices on the axis.
      batch: leaves [N, ...].
      valid: bool[N, ...], the rows that the loss uses.
      num_parts: must divide N. 1: the whole batch at once.
      may_cut: if ``num_parts`` is 1, rows (but not sequences) may be cut into more parts on a CPU, to be faster.
    """
    if may_cut and num_parts == 1 and valid.ndim == 1:

        def in_parts(num_parts: int, params: PyTree, batch: PyTree, valid: Array) -> tuple[PyTree, dict[str, Array]]:
            return accumulated_gradient(loss_fn, params, batch, valid, num_parts, axis_name)

        return cut_to_cache(in_parts, (params, batch, valid), lambda params, batch, _: loss_fn(params, batch, None), len(valid))
    if num_parts == 1:
        return mean_gradient(lambda params: loss_fn(params, batch, axis_name), params, axis_name)
    if valid.shape[0] % num_parts:  # checked here, because a builder does not know the number of devices
        raise ValueError(f"accumulation_steps={num_parts} must divide the {valid.shape[0]} items of a minibatch on each device")
    parts = jax.tree.map(lambda x: x.reshape((num_parts, -1, *x.shape[1:])), batch)
    count = valid.reshape(num_parts, -1).sum(1, dtype=jnp.float32)
    total = pmean(count.sum(), axis_name)
    weight = jnp.where(total > 0, count / _at_least_a_row(total, axis_name), 1.0 / num_parts)
    start = jax.tree.map(jnp.zeros_like, params)
    if axis_name is not None:
        params, start = varying(params, axis_name), varying(start, axis_name)

    def add(total: PyTree, part: tuple[PyTree, Array]) -> tuple[PyTree, dict[str, Array]]:
        gradient, logged = jax.grad(loss_fn, has_aux=True)(params, part[0], None)
        total = jax.tree.map(lambda sum_, g: sum_ + (part[1] * g).astype(sum_.dtype), total, gradient)
        return total, jax.tree.map(lambda x: part[1] * x, logged)

    gradient, logged = jax.lax.scan(add, start, (parts, weight))
    return pmean(gradient, axis_name), jax.tree.map(lambda x: x.sum(0), logged)


def add_losses(
    losses: Sequence[LossFn], params: PyTree, batch: Any, total: Array, metrics: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Add the losses and metrics of user functions ``(params, batch) -> (loss to add, scalars to log)`` to the algorithm's."""
    for loss in losses:
        extra, logged = loss(params, batch)
        total += extra
        metrics |= {f"losses/{name}": x for name, x in logged.items()}
    return total, metrics

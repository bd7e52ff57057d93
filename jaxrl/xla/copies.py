"""Copies that XLA does not remove on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.types import Array
from jaxrl.xla.platforms import on_cpu


def repeated(x: Array, times: int) -> Array:
    """Repeat ``x`` along a new leading axis, [times, ...].

    Networks that share their input would be one product with all of their weights. On a CPU XLA then transposes its result, and
    for the gradient its input, which is a tenth of an update of two critics of 256 units. So there each network gets a copy.
    """

    def broadcast(x: Array) -> Array:
        return jnp.broadcast_to(x, (times, *x.shape))

    return on_cpu(x, cpu=lambda x: jax.lax.optimization_barrier(broadcast(x)), default=broadcast)


def stored(x: Array) -> Array:
    """Store ``x`` before others read it.

    On a CPU, XLA may compute an array that is broadcast again for each element of the result, even if it is expensive. It does
    not do so across the boundary of a conditional. The barrier hides which branch is taken.
    """

    def through_conditional(x: Array) -> Array:
        always = jax.lax.optimization_barrier(jnp.ones((), bool))
        return jax.lax.cond(always, lambda x: x, lambda x: 0 * x, x)  # under shard_map both branches vary over the same devices

    return on_cpu(x, cpu=through_conditional, default=lambda x: x)

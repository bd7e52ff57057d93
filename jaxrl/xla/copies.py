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

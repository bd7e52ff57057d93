"""Read rows of a ring at random places, at a cost independent of the ring's size."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.types import Array

SMALL_BYTES = 2**15
"""Size of a ring up to which XLA's CPU compiler does not split the gather over threads, even for sixteen vectorised rings."""


def gather_rows(ring: Array, row: Array, env: Array) -> Array:
    """Return ``ring[row, env]``. The indices have the same shape, and all are inside the ring."""
    if ring.size * ring.dtype.itemsize <= SMALL_BYTES:
        return _plainly(ring, row, env)
    return jax.lax.platform_dependent(ring, row, env, cpu=_in_one_thread, default=_plainly)


def _plainly(ring: Array, row: Array, env: Array) -> Array:
    return ring.at[row, env].get(mode="promise_in_bounds")


def _in_one_thread(ring: Array, row: Array, env: Array) -> Array:
    """Return the same, in a form that XLA's CPU compiler does not split over threads.

    The compiler counts every byte of the ring as read by a gather. So beyond half a megabyte it splits the few rows over threads,
    and waking these takes longer than reading the rows. It does not split in-place updates of a slice, and it does not fuse code
    across the boundary of a conditional. The barriers hide that the slice is the whole array, and which branch is taken.
    """
    start, always = jax.lax.optimization_barrier((jnp.zeros((), jnp.int32), jnp.ones((), bool)))

    def read(row: Array, env: Array) -> Array:
        rows = _plainly(ring, row.ravel(), env.ravel())
        room = jnp.zeros((rows.shape[0] + 1, *rows.shape[1:]), rows.dtype)
        return jax.lax.dynamic_update_slice_in_dim(room, rows, start, axis=0)

    # The branch that is never taken also reads the ring: under shard_map both must vary over the same devices.
    rows = jax.lax.cond(always, read, lambda row, env: read(0 * row, 0 * env), row, env)[:-1]
    return rows.reshape(row.shape + rows.shape[1:])

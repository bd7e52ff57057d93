"""Reading rows of a ring at random places, at the same cost for any size of ring."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.types import Array

SMALL_BYTES = 2**15
"""Of a ring, up to which sixteen side by side are not split over threads either."""


def gather_rows(ring: Array, row: Array, env: Array) -> Array:
    """``ring[row, env]``; indices of one shape, all inside the ring."""
    if ring.size * ring.dtype.itemsize <= SMALL_BYTES:
        return _plainly(ring, row, env)
    return jax.lax.platform_dependent(ring, row, env, cpu=_in_one_thread, default=_plainly)


def _plainly(ring: Array, row: Array, env: Array) -> Array:
    return ring.at[row, env].get(mode="promise_in_bounds")


def _in_one_thread(ring: Array, row: Array, env: Array) -> Array:
    """The same, kept whole by XLA's CPU compiler.

    It counts every byte of the ring as read by a gather, so beyond half a megabyte it splits the few rows over threads, and to
    wake those takes longer than to read. What updates a slice in place it does not split, nor does it merge what is inside of a
    conditional with what is outside. The barriers hide that the slice is the whole, and which branch is taken.
    """
    start, always = jax.lax.optimization_barrier((jnp.zeros((), jnp.int32), jnp.ones((), bool)))

    def read(row: Array, env: Array) -> Array:
        rows = _plainly(ring, row.ravel(), env.ravel())
        room = jnp.zeros((rows.shape[0] + 1, *rows.shape[1:]), rows.dtype)
        return jax.lax.dynamic_update_slice_in_dim(room, rows, start, axis=0)

    # The branch that is never taken reads, too: under shard_map both must vary over the same devices.
    rows = jax.lax.cond(always, read, lambda row, env: read(0 * row, 0 * env), row, env)[:-1]
    return rows.reshape(row.shape + rows.shape[1:])

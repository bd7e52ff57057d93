"""Uniform replay: a ring of rows, time-major, that stores each observation once.

What follows row t is row t + 1, because at an end row t + 1 is the reset row, whose observation is the true last one. Writes are
``dynamic_update_slice`` and draws ``randint``, so the cost of both is independent of the capacity, also under ``vmap``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrl.config import check_count
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.records import Records, layout_of, pack
from jaxrl.types import Array, Key, PyTree

CANDIDATES = 4
"""Rows drawn per sample to find a valid one. A share q of invalid rows leaves q⁴ of the draws unusable (``Draw.valid`` False)."""


class Rows(Protocol):
    """Anything with a ``valid`` leaf: a NamedTuple of arrays [T, B, ...]."""

    @property
    def valid(self) -> Array: ...


class ReplayState(NamedTuple):
    records: Records
    """[ring_length, B]"""
    valid: Array
    """bool[ring_length, B]: the rows' own, once more: draws look at many."""
    position: Array
    """i32[]: where the next row goes."""
    size: Array
    """i32[]: how many of the newest rows count, at most ``capacity``."""


class Draw(NamedTuple):
    """Uniformly drawn rows that may start a window, [batch]."""

    row: Array
    env: Array
    valid: Array
    """bool: False where no valid row was found; such a draw must carry no weight."""


class Replay(NamedTuple):
    """A replay buffer as pure functions."""

    init: Any
    """(example row, unbatched) -> ReplayState"""
    add: Any
    """(ReplayState, rows [T, B, ...]) -> ReplayState"""
    draw: Any
    """(ReplayState, key, batch_size) -> Draw. Row −1 to row ``after`` of a drawn one are stored, and the row itself is valid."""
    take: Any
    """(ReplayState, Draw, offset) -> rows [batch, ...], ``offset`` rows after those drawn: −1 to ``after``, one or i32[batch]."""
    seal: Any
    """(ReplayState) -> ReplayState. The next rows do not follow those stored: the newest row of each environment becomes invalid,
    so that no window crosses the seam. For environments that begin anew, as those of a resumed run on the host do."""


def uniform_replay(capacity: int, num_envs: int, rows_per_add: int, after: int = 1) -> Replay:
    """A ring that holds exactly the newest ``capacity`` rows of each of ``num_envs`` environments.

    Args:
      capacity: rows per environment; any size, also one that ``rows_per_add`` does not divide (the ring itself is rounded up, so
        that a write never wraps; draws still see ``capacity`` rows).
      num_envs: for ``init``; later calls follow the state, which may hold one device's share.
      rows_per_add: T of every ``add``.
      after: rows that a drawn one is followed by; for n-step returns, n.
    """
    num_envs, rows_per_add = check_count("num_envs", num_envs), check_count("rows_per_add", rows_per_add)
    after = check_count("after", after)
    capacity = check_count("capacity", capacity, at_least=after + 2)
    ring_length = -(-capacity // rows_per_add) * rows_per_add

    def init(example: Rows) -> ReplayState:
        rows = jax.tree.map(lambda x: jnp.zeros((ring_length, num_envs, *x.shape), x.dtype), example)
        zero = jnp.zeros((), jnp.int32)
        return ReplayState(pack(layout_of(example), rows), jnp.zeros((ring_length, num_envs), bool), zero, zero)

    def add(state: ReplayState, rows: Rows) -> ReplayState:
        length = rows.valid.shape[0]
        if length != rows_per_add:
            raise ValueError(f"this replay takes {rows_per_add} rows at a time, not {length}: build it for that rollout_length")

        new_rows = (pack(state.records.layout, rows), rows.valid)

        def write(_: Array, ring: PyTree) -> PyTree:
            return jax.tree.map(
                lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, state.position, axis=0),
                ring,
                new_rows,
            )

        # XLA would fuse a plain write into the draws that follow, which then read the ring before and after it: a copy of the
        # whole ring per iteration. A loop is never fused into its readers, and one of two trips is not unrolled; the second
        # trip repeats the first.
        records, valid = jax.lax.fori_loop(0, 2, write, (state.records, state.valid))
        position = (state.position + length) % ring_length
        return ReplayState(records, valid, position, jnp.minimum(state.size + length, capacity))

    def draw(state: ReplayState, key: Key, batch_size: int) -> Draw:
        envs = state.valid.shape[1]
        # The newest rows have too few successors yet, and the oldest has no predecessor.
        drawable = state.size - after - 1
        index = jax.random.randint(key, (CANDIDATES, batch_size), 0, jnp.maximum(drawable, 1) * envs)
        age, env = index // envs + after, index % envs
        row = (state.position - 1 - age) % ring_length
        valid = gather_rows(state.valid, row, env) & (drawable > 0)
        found_row, found_env, found = row[0], env[0], valid[0]
        for i in range(1, CANDIDATES):
            found_row = jnp.where(found, found_row, row[i])
            found_env = jnp.where(found, found_env, env[i])
            found |= valid[i]
        return Draw(found_row, found_env, found)

    def take(state: ReplayState, draw: Draw, offset: int | Array) -> PyTree:
        row = draw.row if isinstance(offset, int) and offset == 0 else (draw.row + offset) % ring_length
        return jax.tree.map(lambda ring: gather_rows(ring, row, draw.env), state.records).unpack()

    def seal(state: ReplayState) -> ReplayState:
        newest = (state.position - 1) % ring_length
        row: Any = jax.tree.map(lambda ring: jax.lax.dynamic_slice_in_dim(ring, newest, 1), state.records).unpack()
        sealed = (pack(state.records.layout, row._replace(valid=jnp.zeros_like(row.valid))), jnp.zeros_like(state.valid[:1]))
        records, valid = jax.tree.map(
            lambda ring, new: jax.lax.dynamic_update_slice_in_dim(ring, new, newest, axis=0), (state.records, state.valid), sealed
        )
        return state._replace(records=records, valid=valid)

    return Replay(init, add, draw, take, seal)

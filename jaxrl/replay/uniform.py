"""Uniform replay: a ring of rows, time-major, that stores each observation once.

What follows row t is row t + 1, because at an end row t + 1 is the reset row, whose observation is the true last one. Writes are
``dynamic_update_slice`` and draws ``randint``, so the cost of both is independent of the capacity, also under ``vmap``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import check_count
from jaxrl.replay import Draw, Replay, Rows
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.records import Records, check_rows, layout_of, pack
from jaxrl.types import Array, Key, PyTree

CANDIDATES = 4
"""Rows drawn per sample to find a valid one. A share q of invalid rows leaves q⁴ of the draws unusable (``Draw.valid`` False)."""


class ReplayState(NamedTuple):
    records: Records
    """[ring_length, B]"""
    valid: Array
    """bool[ring_length, B]: the rows' own, once more: draws look at many."""
    position: Array
    """i32[]: where the next row goes, and ring_length more for each lane that has its rows of a round which is not complete."""
    size: Array
    """i32[]: how many of the newest rows count, at most ``capacity``."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"records": 1, "valid": 1}


def uniform_replay(capacity: int, num_envs: int, rows_per_add: int, *, before: int = 0, after: int = 1) -> Replay:
    """A ring that holds exactly the newest ``capacity`` rows of each of ``num_envs`` environments.

    Args:
      capacity: rows per environment; any size, also one that ``rows_per_add`` does not divide (the ring itself is rounded up, so
        that a write never wraps; draws still see ``capacity`` rows).
      num_envs: for ``init``; later calls follow the state, which may hold one device's share.
      rows_per_add: T of every ``add``.
      before: rows that come before a drawn one; for the previous action and reward, 1.
      after: rows that follow a drawn one; for n-step returns, n.
    """
    num_envs, rows_per_add = check_count("num_envs", num_envs), check_count("rows_per_add", rows_per_add)
    before, after = check_count("before", before, at_least=0), check_count("after", after, at_least=0)
    capacity = check_count("capacity", capacity, at_least=before + 1 + after)
    ring_length = -(-capacity // rows_per_add) * rows_per_add

    def init(example: Rows) -> ReplayState:
        rows = jax.tree.map(lambda x: jnp.zeros((ring_length, num_envs, *x.shape), x.dtype), example)
        zero = jnp.zeros((), jnp.int32)
        return ReplayState(pack(layout_of(example), rows), jnp.zeros((ring_length, num_envs), bool), zero, zero)

    def add(state: ReplayState, rows: Rows, env_id: Array) -> ReplayState:
        length, lanes = rows.valid.shape[0], state.valid.shape[1]
        if length != rows_per_add:
            raise ValueError(f"this replay takes {rows_per_add} rows at a time, not {length}: build it for that rollout_length")
        check_env_id(env_id, lanes)
        batch = env_id.shape[0]
        check_rows(state.records.layout, rows, (length, batch))

        new_rows = (pack(state.records.layout, rows), rows.valid)
        whole = batch == lanes
        row, lane = (state.position, 0) if whole else (state.position % ring_length, env_id[0] % lanes)

        def write(_: Array, ring: PyTree) -> PyTree:
            return jax.tree.map(
                lambda old, new: jax.lax.dynamic_update_slice(old, new, (row, lane, *[0] * (old.ndim - 2))), ring, new_rows
            )

        # XLA would fuse a plain write into the draws that follow, which then read the ring before and after it: a copy of the
        # whole ring per iteration. A loop is never fused into its readers, and one of two trips is not unrolled; the second
        # trip repeats the first.
        records, valid = jax.lax.fori_loop(0, 2, write, (state.records, state.valid))
        position, size = (row + length) % ring_length, jnp.minimum(state.size + length, capacity)
        if not whole:
            # What the round overwrites does not count from its first part on, and what it brings from its last part on.
            come = state.position // ring_length + batch
            position = jnp.where(come == lanes, position, row + ring_length * come)
            size = jnp.where(come == lanes, size, jnp.minimum(state.size, ring_length - length))
        return ReplayState(records, valid, position, size)

    def draw(state: ReplayState, key: Key, batch_size: int) -> Draw:
        envs = state.valid.shape[1]
        # The newest rows have too few successors yet, and the oldest too few predecessors.
        drawable = state.size - after - before
        index = jax.random.randint(key, (CANDIDATES, batch_size), 0, jnp.maximum(drawable, 1) * envs)
        age, env = index // envs + after, index % envs
        row = (state.position - 1 - age) % ring_length
        valid = gather_rows(state.valid, row, env) & (drawable > 0)
        found_row, found_env, found = row[0], env[0], valid[0]
        for i in range(1, CANDIDATES):
            found_row = jnp.where(found, found_row, row[i])
            found_env = jnp.where(found, found_env, env[i])
            found |= valid[i]
        return Draw(found_row, found_env, jnp.ones(batch_size, jnp.float32), found)

    def take(state: ReplayState, draw: Draw, offset: int | Array) -> Any:
        if isinstance(offset, int) and not -before <= offset <= after:
            raise ValueError(
                f"offset={offset} must be from {-before} to {after}: build this replay with a larger before or after"
            )
        chex.assert_rank([draw.row, draw.env], 1)
        chex.assert_equal_shape([draw.row, draw.env, *([] if isinstance(offset, int) else [offset])])
        row = draw.row if isinstance(offset, int) and offset == 0 else (draw.row + offset) % ring_length
        return jax.tree.map(lambda ring: gather_rows(ring, row, draw.env), state.records).unpack()

    def update(state: ReplayState, draw: Draw, priorities: Array) -> ReplayState:
        return state

    def seal(state: ReplayState) -> ReplayState:
        newest = (state.position - 1) % ring_length
        row: Any = jax.tree.map(lambda ring: jax.lax.dynamic_slice_in_dim(ring, newest, 1), state.records).unpack()
        sealed = (pack(state.records.layout, row._replace(valid=jnp.zeros_like(row.valid))), jnp.zeros_like(state.valid[:1]))
        records, valid = jax.tree.map(
            lambda ring, new: jax.lax.dynamic_update_slice_in_dim(ring, new, newest, axis=0), (state.records, state.valid), sealed
        )
        return state._replace(records=records, valid=valid)

    return Replay(init, add, draw, take, update, seal)


def check_env_id(env_id: Array, lanes: int) -> None:
    """Refuse environments that are not consecutive lanes of a ring; traced ids are looked at for their shape alone."""
    chex.assert_rank(env_id, 1)
    chex.assert_type(env_id, int)
    count = env_id.shape[0]
    if not 0 < count <= lanes:
        raise ValueError(f"env_id names {count} environments, and this replay has {lanes} lanes: build it for that num_envs")
    if not isinstance(env_id, jax.core.Tracer):
        ids = np.asarray(env_id)
        if (ids != ids[0] + np.arange(count)).any() or ids[0] % lanes + count > lanes:
            raise ValueError(f"env_id={ids.tolist()} must be consecutive environments within the {lanes} lanes of this replay")

"""Uniform replay: a time-major ring of rows that stores each observation once.

The observation after row t is in row t + 1: at the end of an episode, row t + 1 is the reset row, which holds the true last
observation. Writes use ``dynamic_update_slice`` and draws ``randint``, so the cost of both is independent of the capacity, also
under ``vmap``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.replay import Draw, Replay, Rows, bind
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.row_layout import Records, check_rows, layout_of, pack
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import check_count
from jaxrl.types import Array, Key, PyTree
from jaxrl.xla.fast_random import integers_below, split
from jaxrl.xla.private_jax import is_traced

CANDIDATES = 4
"""Rows drawn per sample to find a valid one. If a share q of rows is invalid, q⁴ of the draws are unusable (``Draw.valid`` is
False)."""


class ReplayState(NamedTuple):
    """The ring and its counters."""

    records: Records
    """[ring_length, B]"""
    valid: Array
    """bool[ring_length, B]: a copy of the rows' ``valid``, because each draw reads several."""
    position: Array
    """i32[]: position of the next row, plus ring_length for each lane that already has its rows of an incomplete round."""
    size: Array
    """i32[]: number of newest rows that can be used, at most ``capacity``."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"records": 1, "valid": 1}

    @property
    def row_fields(self) -> tuple[str, ...]:
        return ("records", "valid")


class Ring(NamedTuple):
    """Sizes of a ring, the first argument of its functions."""

    capacity: int
    num_envs: int
    rows_per_add: int
    before: int
    after: int

    @property
    def length(self) -> int:
        """Number of rows of the arrays: ``capacity``, rounded up so that no write wraps."""
        return -(-self.capacity // self.rows_per_add) * self.rows_per_add


@component("replay")
def uniform_replay(capacity: int, num_envs: int, rows_per_add: int, *, before: int = 0, after: int = 1) -> Replay:
    """Return a replay that holds exactly the newest ``capacity`` rows of each of ``num_envs`` environments.

    Args:
      capacity: rows per environment; it need not be a multiple of ``rows_per_add``.
      num_envs: number of environments for ``init``. The other functions use that of the state, which may be a device's share.
      rows_per_add: T of every ``add``.
      before: number of rows before a drawn one; 1 for the previous action and reward.
      after: number of rows after a drawn one; n for n-step returns.
    """
    ring = make_ring(capacity, num_envs, rows_per_add, before=before, after=after)
    return bind(ring, (init, add, draw, take, update, mark_discontinuity))


def make_ring(capacity: int, num_envs: int, rows_per_add: int, *, before: int, after: int) -> Ring:
    """Check the sizes and return them."""
    num_envs, rows_per_add = check_count("num_envs", num_envs), check_count("rows_per_add", rows_per_add)
    before, after = check_count("before", before, at_least=0), check_count("after", after, at_least=0)
    capacity = check_count("capacity", capacity, at_least=before + 1 + after)
    return Ring(capacity, num_envs, rows_per_add, before, after)


def init(ring: Ring, example: Rows) -> ReplayState:
    shape = (ring.length, ring.num_envs)
    rows = jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), example)
    position, size = (jnp.zeros((), jnp.int32) for _ in range(2))  # two arrays: one could not be donated twice
    return ReplayState(pack(layout_of(example), rows), jnp.zeros(shape, bool), position, size)


def add(ring: Ring, state: ReplayState, rows: Rows, env_id: Array) -> ReplayState:
    length, lanes = rows.valid.shape[0], state.valid.shape[1]
    if length != ring.rows_per_add:
        raise ValueError(f"this replay takes {ring.rows_per_add} rows at a time, not {length}: build it for that rollout_length")
    check_env_id(env_id, lanes)
    batch = env_id.shape[0]
    check_rows(state.records.layout, rows, (length, batch))

    whole = batch == lanes
    row, lane = (state.position, 0) if whole else (state.position % ring.length, env_id[0] % lanes)
    records, valid = _write((state.records, state.valid), (pack(state.records.layout, rows), rows.valid), row, lane)
    position, size = (row + length) % ring.length, jnp.minimum(state.size + length, ring.capacity)
    if not whole:
        # Rows that the round overwrites do not count from its first part on; its new rows count from its last part on.
        come = state.position // ring.length + batch
        position = jnp.where(come == lanes, position, row + ring.length * come)
        size = jnp.where(come == lanes, size, jnp.minimum(state.size, ring.length - length))
    return ReplayState(records, valid, position, size)


def _write(arrays: PyTree, new: PyTree, row: Array, lane: int | Array) -> PyTree:
    """Write ``new`` to ``arrays`` at a row and a lane.

    XLA would fuse a plain write into the draws that follow. These would then read the ring before and after the write, which
    copies the whole ring in each iteration. A loop is never fused into its readers, and a loop of two iterations is not unrolled;
    the second iteration repeats the first.
    """

    def write(_: Array, arrays: PyTree) -> PyTree:
        return jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice(old, new, (row, lane, *[0] * (old.ndim - 2))), arrays, new
        )

    return jax.lax.fori_loop(0, 2, write, arrays)


def draw(ring: Ring, state: ReplayState, key: Key, batch_size: int, share: Array | None = None) -> Draw:
    """Draw valid rows with equal probability; of ``share`` f32[batch_size] of the newest rows, if given."""
    envs = state.valid.shape[1]
    # The newest rows have too few successors, and the oldest too few predecessors.
    drawable = state.size - ring.after - ring.before
    age, env = places(key, (CANDIDATES, batch_size), ring.capacity, envs, jnp.maximum(drawable, 1))
    if share is not None:
        age = (age * share).astype(jnp.int32)
    row = (state.position - 1 - ring.after - age) % ring.length
    valid = gather_rows(state.valid, row, env) & (drawable > 0)
    found_row, found_env, found = row[0], env[0], valid[0]
    for i in range(1, CANDIDATES):
        found_row = jnp.where(found, found_row, row[i])
        found_env = jnp.where(found, found_env, env[i])
        found |= valid[i]
    return Draw(found_row, found_env, jnp.ones(batch_size, jnp.float32), found)


def places(key: Key, shape: tuple[int, ...], capacity: int, lanes: int, rows: Array) -> tuple[Array, Array]:
    """Draw uniform random ``(row, lane)``, i32[*shape] each, with row < ``rows`` ≤ ``capacity``."""
    if capacity * lanes < 2**31:
        index = integers_below(key, shape, rows * lanes)
        return index // lanes, index % lanes
    row_key, lane_key = split(key)  # 32 bits cannot index all places
    return integers_below(row_key, shape, rows), integers_below(lane_key, shape, jnp.int32(lanes))


def take(ring: Ring, state: ReplayState, draw: Draw, offset: int | Array) -> Any:
    check_offset(offset, ring.before, ring.after)
    chex.assert_rank([draw.row, draw.env], 1)
    chex.assert_equal_shape([draw.row, draw.env, *([] if isinstance(offset, int) else [offset])])
    row = draw.row if isinstance(offset, int) and offset == 0 else (draw.row + offset) % ring.length
    return jax.tree.map(lambda x: gather_rows(x, row, draw.env), state.records).unpack()


def update(ring: Ring, state: ReplayState, draw: Draw, priorities: Array) -> ReplayState:
    return state


def mark_discontinuity(ring: Ring, state: ReplayState) -> ReplayState:
    newest = (state.position - 1) % ring.length
    row: Any = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, newest, 1), state.records).unpack()
    sealed = (pack(state.records.layout, row._replace(valid=jnp.zeros_like(row.valid))), jnp.zeros_like(state.valid[:1]))

    def put(old: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new, newest, axis=0)

    records, valid = jax.tree.map(put, (state.records, state.valid), sealed)
    return state._replace(records=records, valid=valid)


def check_offset(offset: int | Array, before: int, after: int) -> None:
    """Raise ValueError for an offset outside of the window; offsets in arrays are not checked."""
    if isinstance(offset, int) and not -before <= offset <= after:
        raise ValueError(f"offset={offset} must be from {-before} to {after}: build this replay with a larger before or after")


def check_env_id(env_id: Array, lanes: int) -> None:
    """Raise an error unless environments are consecutive lanes of a ring; of traced ids only the shape is checked."""
    chex.assert_rank(env_id, 1)
    chex.assert_type(env_id, int)
    count = env_id.shape[0]
    if not 0 < count <= lanes:
        raise ValueError(f"env_id names {count} environments, but this replay has {lanes} lanes: build it for that num_envs")
    if not is_traced(env_id):
        ids = np.asarray(env_id)
        if (ids != ids[0] + np.arange(count)).any() or ids[0] % lanes + count > lanes:
            raise ValueError(f"env_id={ids.tolist()} must be consecutive environments within the {lanes} lanes of this replay")

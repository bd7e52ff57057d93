"""Proportional prioritised replay (Schaul et al. 2016): uniform replay's ring, and over each lane of it a tree of sums.

A leaf of the tree is what a row counts when drawing, and 0 unless the row is valid and its whole window is stored. Each node
holds the sum of its ``FANOUT`` children, and who writes a leaf sums anew on the way up, so no error gathers in float32. A draw
goes down from the root and chooses one child after the other, never one of 0. Both take as many steps as the tree has levels, the
logarithm of the capacity, also under ``vmap``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, ReplayFn, Rows, uniform
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.uniform import ReplayState, Ring, make_ring
from jaxrl.settings.validation import Range, check_number
from jaxrl.types import Array, Key
from jaxrl.xla.fast_random import unrolled

FANOUT = 8
"""Children of a node. Fewer make more levels; more, longer sums to look through at each."""
SMALLEST, LARGEST = 1e-6, 1e10
"""What is added to a priority, so that a row with nothing to learn is drawn again some day (the paper's ε), and the most that one
counts, so that no sum overflows."""


class PrioritisedState(NamedTuple):
    ring: ReplayState
    levels: tuple[Array, ...]
    """f32[B, nodes, FANOUT] each, from the rows up to a single node; entry i of a level is [lane, i // FANOUT, i % FANOUT]."""
    highest: Array
    """f32[B]: the largest leaf that was ever written, the same in all lanes. New rows get it."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"levels": 0, "highest": 0}


class Exponents(NamedTuple):
    priority: float
    importance: float


def prioritised_replay(*, priority_exponent: float = 0.6, importance_exponent: float = 1.0) -> ReplayFn:
    """A ring as ``uniform_replay``'s, whose row i is drawn with probability P(i) = pᵢ^α / Σⱼ pⱼ^α (eq. 1 of the paper).

    New rows have the largest priority so far, or 1; ``update`` says how much there was to learn from drawn ones. A batch is
    stratified: its i-th row comes from the i-th of ``batch_size`` equal parts of the sum, as far as those are wider than nodes
    of the tree (appendix B.2.1). ``Draw.weight`` is (N·P(i))^−β over its largest in the batch (section 3.4); of
    a batch that devices share, ``jaxrl.replay.over_devices`` makes it that over the largest of all.

    In ``update``, a priority that is negative counts as 0, +inf as 1e10, and a NaN leaves the row's as it was. Of a row that was
    drawn several times the largest counts. A row that cannot be drawn stays so, whatever was meant for one that it has replaced;
    one that can be drawn again by then would take it, so update before the next ``add``.

    Args:
      priority_exponent: α; 0 draws all rows alike.
      importance_exponent: β; 1 corrects in full for drawing rows unlike, 0 not at all. A rule whose β rises in the course of a
        run raises weights of β = 1 to the power of it.

    Raises:
      ValueError: an exponent outside [0, 1].
    """
    for name, value in (("priority_exponent", priority_exponent), ("importance_exponent", importance_exponent)):
        check_number(name, value, Range(0, 1))
    exponents = Exponents(float(priority_exponent), float(importance_exponent))

    def make(capacity: int, num_envs: int, rows_per_add: int, /, *, before: int, after: int) -> Replay:
        ring = make_ring(capacity, num_envs, rows_per_add, before=before, after=after)
        return Replay(
            partial(init, ring),
            partial(add, ring),
            partial(draw, ring, exponents),
            partial(take, ring),
            partial(update, exponents),
            partial(mark_discontinuity, ring),
            prioritised=True,
        )

    return make


def init(ring: Ring, example: Rows) -> PrioritisedState:
    levels: list[Array] = []
    entries = ring.length
    while not levels or entries > 1:
        entries = -(-entries // FANOUT)
        levels.append(jnp.zeros((ring.num_envs, entries, FANOUT), jnp.float32))
    return PrioritisedState(uniform.init(ring, example), tuple(levels), jnp.ones(ring.num_envs, jnp.float32))


def add(ring: Ring, state: PrioritisedState, rows: Rows, env_id: Array) -> PrioritisedState:
    stored = uniform.add(ring, state.ring, rows, env_id)
    lanes, size = stored.valid.shape[1], stored.size
    lane, step = jnp.arange(lanes, dtype=jnp.int32)[:, None], jnp.arange(ring.rows_per_add, dtype=jnp.int32)

    # What no window holds whole any more, with these rows gone: all that is older is. Around the ring it may be what is next.
    old = (size - ring.before + step) % ring.length
    # What has all its successors now; of a round that is not complete, nothing has.
    age, complete = jnp.concatenate([old, ring.after + step]), stored.position < ring.length
    row = (stored.position - 1 - age) % ring.length
    new = complete & (age >= ring.after) & (age < jnp.minimum(ring.after + ring.rows_per_add, size - ring.before))
    leaf = jnp.where(stored.valid[row].T & new, state.highest.max(), 0.0)
    # In one write: XLA would fuse the second of two with each of its readers, for which it copies the whole level.
    entry = jnp.where(complete | (jnp.arange(row.size) < old.size), row, state.levels[0].shape[1] * FANOUT)
    leaves = _put(state.levels[0], lane, entry, leaf)
    nodes = jnp.concatenate([_nodes(ring, first) for first in row[step.size - 1 :: step.size]])
    return PrioritisedState(stored, _sum_up((leaves, *state.levels[1:]), *jnp.broadcast_arrays(lane, nodes)), state.highest)


def _nodes(ring: Ring, first: Array) -> Array:
    """The nodes above ``rows_per_add`` rows of a lane from ``first`` on, around the end of the ring."""
    nodes = -(-ring.length // FANOUT)
    count = min(ring.rows_per_add, ring.rows_per_add // FANOUT + 4, nodes)
    return (first // FANOUT + jnp.arange(count, dtype=jnp.int32)) % nodes


def _put(level: Array, lane: Array, entry: Array, value: Array | float) -> Array:
    """``level`` with ``value`` in some entries; those beyond the last node are dropped."""
    return level.at[lane, entry // FANOUT, entry % FANOUT].set(value, mode="drop")


def _sum_up(levels: tuple[Array, ...], lane: Array, node: Array) -> tuple[Array, ...]:
    """The levels, with what lies above some nodes of the lowest summed anew."""
    summed = list(levels)
    for i in range(len(levels) - 1):
        total = gather_rows(summed[i], lane, node).sum(-1)
        summed[i + 1] = _put(summed[i + 1], lane, node, total)
        node = node // FANOUT
    return tuple(summed)


def draw(ring: Ring, exponents: Exponents, state: PrioritisedState, key: Key, batch_size: int) -> Draw:
    total, down = state.levels[-1].sum((1, 2)), [*reversed(state.levels)]
    lanes = total.shape[0]
    over_lanes = _over_lanes(total) if lanes > 1 else []
    uniforms = jax.random.uniform(unrolled(key), (len(over_lanes) + len(down), batch_size))
    point, lane, row = (jnp.arange(batch_size) + uniforms[0]) / batch_size, *jnp.zeros((2, batch_size), jnp.int32)
    for depth, level in enumerate([*over_lanes, *down]):
        if FANOUT**depth > batch_size:  # nodes narrower than the strata, for which a float32 has few digits left
            point = uniforms[depth]
        if depth < len(over_lanes):
            child, _, point = _choose(level[lane], point)
            lane = lane * FANOUT + child
        else:
            child, leaf, point = _choose(gather_rows(level, lane, row), point)
            row = row * FANOUT + child
    found = leaf > 0
    # To the power of a negative number the least leaf has the largest weight; the sum and N are the same for all.
    least = jnp.min(jnp.where(found, leaf, jnp.inf))
    weight = jnp.where(found, (least / jnp.where(found, leaf, 1.0)) ** exponents.importance, 0.0)
    return Draw(row, lane, weight, found, divisor=(total.sum() / least) ** exponents.importance)


def _over_lanes(total: Array) -> list[Array]:
    """A tree over what the lanes sum up to, f32[nodes, FANOUT] each, the root first."""
    levels: list[Array] = []
    while not levels or total.shape[0] > 1:
        total = jnp.pad(total, (0, -total.shape[0] % FANOUT)).reshape(-1, FANOUT)
        levels, total = [total, *levels], total.sum(1)
    return levels


def _choose(children: Array, point: Array) -> tuple[Array, Array, Array]:
    """The child of f32[N, FANOUT] within which each ``point``, in [0, 1] of their sum, lies; its value; where in it, in [0, 1].

    Never one of 0, however the sums are rounded; the first where all are.
    """
    # What cumsum gives, by a product: the window that XLA makes of that takes several times as long.
    upper = jnp.matmul(children, jnp.triu(jnp.ones((FANOUT, FANOUT))), precision="highest")
    index, some = jnp.arange(FANOUT, dtype=jnp.int32), children > 0
    aim = point[:, None] * upper[:, -1:]
    first = jnp.min(jnp.where(some & (upper > aim), index, FANOUT), -1)
    chosen = jnp.minimum(first, jnp.max(jnp.where(some, index, 0), -1))
    value, before = _of(children, chosen), _of(upper - children, chosen)
    inside = (aim[:, 0] - before) / jnp.where(value > 0, value, 1.0)
    return chosen, value, jnp.clip(inside, 0.0, 1.0)


def _of(children: Array, child: Array) -> Array:
    return jnp.where(jnp.arange(FANOUT, dtype=jnp.int32) == child[:, None], children, 0.0).sum(-1)


def take(ring: Ring, state: PrioritisedState, draw: Draw, offset: int | Array) -> Any:
    return uniform.take(ring, state.ring, draw, offset)


def update(exponents: Exponents, state: PrioritisedState, draw: Draw, priorities: Array) -> PrioritisedState:
    if priorities.shape != draw.row.shape:
        raise ValueError(
            f"priorities has shape {priorities.shape} and must have one number for each of the draw's {draw.row.shape} rows: "
            "reduce it, say by the mean of |TD error|"
        )
    leaf = (jnp.clip(priorities.astype(jnp.float32), 0.0, LARGEST) + SMALLEST) ** exponents.priority
    now = _of(gather_rows(state.levels[0], draw.env, draw.row // FANOUT), draw.row % FANOUT)
    known = draw.valid & (now > 0) & ~jnp.isnan(leaf)
    # First 0, then the largest: of rows that were drawn twice the order of plain writes would decide.
    entry = jnp.where(known, draw.row, state.levels[0].shape[1] * FANOUT)
    leaves = _put(state.levels[0], draw.env, entry, 0.0)
    leaves = leaves.at[draw.env, entry // FANOUT, entry % FANOUT].max(leaf, mode="drop")
    levels = _sum_up((leaves, *state.levels[1:]), draw.env, draw.row // FANOUT)
    return state._replace(levels=levels, highest=jnp.maximum(state.highest, jnp.max(jnp.where(known, leaf, 0.0))))


def mark_discontinuity(ring: Ring, state: PrioritisedState) -> PrioritisedState:
    lane = jnp.arange(state.levels[0].shape[0], dtype=jnp.int32)
    newest = jnp.full_like(lane, (state.ring.position - 1) % ring.length)
    levels = (_put(state.levels[0], lane, newest, 0.0), *state.levels[1:])
    return state._replace(ring=uniform.mark_discontinuity(ring, state.ring), levels=_sum_up(levels, lane, newest // FANOUT))

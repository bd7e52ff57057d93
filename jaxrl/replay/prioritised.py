"""Proportional prioritised replay (Schaul et al. 2016): the ring of uniform replay, with a sum tree over each of its lanes.

A leaf of the tree is the weight with which its row is drawn. It is 0 unless the row is valid and its whole window is stored. Each
node is the sum of its ``FANOUT`` children. Writing a leaf recomputes the sums above it, so float32 errors do not accumulate. A
draw descends from the root, choosing a child at each level, never one with sum 0. Both take one step per level, so their cost is
logarithmic in the capacity, also under ``vmap``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, ReplayFn, Rows, bind, uniform
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.uniform import ReplayState, Ring, make_ring
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import Range, check_number
from jaxrl.types import Array, Key
from jaxrl.xla import fast_random

FANOUT = 8
"""Number of children of a node. With fewer there are more levels; with more, each level has longer sums to search."""
SMALLEST, LARGEST = 1e-6, 1e10
"""The first is added to each priority, so that every row can be drawn again (the paper's ε). The second is the limit of a
priority, so that sums do not overflow."""


class PrioritisedState(NamedTuple):
    """The ring and the sum trees."""

    ring: ReplayState
    levels: tuple[Array, ...]
    """f32[B, nodes, FANOUT] each, from the rows up to a single node; entry i of a level is at [lane, i // FANOUT, i % FANOUT]."""
    highest: Array
    """f32[B]: the largest leaf ever written, the same in all lanes. New rows get this value."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"levels": 0, "highest": 0}


class Exponents(NamedTuple):
    priority: float
    importance: float


@component("value")
def prioritised_replay(*, priority_exponent: float = 0.6, importance_exponent: float = 1.0) -> ReplayFn:
    """Return a function that makes a ring like ``uniform_replay``, with draws in proportion to priorities.

    Row i is drawn with probability P(i) = pᵢ^α / Σⱼ pⱼ^α (eq. 1 of the paper). New rows have the largest priority so far, or 1;
    ``update`` sets the priorities of drawn rows. A batch is stratified: its i-th row comes from the i-th of ``batch_size`` equal
    parts of the sum, as long as these are wider than the nodes of the tree (appendix B.2.1). ``Draw.weight`` is (N·P(i))^−β
    divided by its maximum over the batch (section 3.4). If devices share a batch, ``jaxrl.replay.over_devices`` takes the maximum
    over all devices.

    In ``update``, negative priorities count as 0 and +inf as 1e10; NaN leaves the priority unchanged. For a row drawn several
    times the largest priority counts. Call ``update`` before the next ``add``: the priority of a row that has been overwritten
    is ignored while the new row cannot be drawn, but otherwise the new row would get it.

    Args:
      priority_exponent: α; 0 draws all rows with equal probability.
      importance_exponent: β; 1 corrects fully for unequal probabilities, 0 not at all. Algorithms that increase β during a run
        use weights for β = 1 and raise these to the power β.

    Raises:
      ValueError: an exponent outside [0, 1].
    """
    for name, value in (("priority_exponent", priority_exponent), ("importance_exponent", importance_exponent)):
        check_number(name, value, Range(0, 1))
    alpha, beta = float(priority_exponent), float(importance_exponent)
    return partial(make_prioritised_replay, priority_exponent=alpha, importance_exponent=beta)


@component("replay")
def make_prioritised_replay(
    capacity: int,
    num_envs: int,
    rows_per_add: int,
    *,
    before: int,
    after: int,
    priority_exponent: float,
    importance_exponent: float,
) -> Replay:
    """Make the replay of ``prioritised_replay``, which describes the exponents."""
    ring = make_ring(capacity, num_envs, rows_per_add, before=before, after=after)
    exponents = Exponents(priority_exponent, importance_exponent)
    functions = (init, add, partial(draw, exponents), take, partial(update, exponents), mark_discontinuity)
    return bind(ring, functions, prioritised=True)


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

    # Rows that have lost a predecessor of their window to this add; older ones are cleared already. Modulo the length, these
    # entries may be new rows, which are set here as well.
    old = (size - ring.before + step) % ring.length
    # Rows that now have all their successors: none if the round is incomplete.
    age, complete = jnp.concatenate([old, ring.after + step]), stored.position < ring.length
    row = (stored.position - 1 - age) % ring.length
    new = complete & (age >= ring.after) & (age < jnp.minimum(ring.after + ring.rows_per_add, size - ring.before))
    leaf = jnp.where(stored.valid[row].T & new, state.highest.max(), 0.0)
    # A single write: XLA would fuse a second one with each of its readers, and copy the whole level for it.
    entry = jnp.where(complete | (jnp.arange(row.size) < old.size), row, state.levels[0].shape[1] * FANOUT)
    leaves = _put(state.levels[0], lane, entry, leaf)
    nodes = jnp.concatenate([_nodes(ring, first) for first in row[step.size - 1 :: step.size]])
    return PrioritisedState(stored, _sum_up((leaves, *state.levels[1:]), *jnp.broadcast_arrays(lane, nodes)), state.highest)


def _nodes(ring: Ring, first: Array) -> Array:
    """Return the nodes above ``rows_per_add`` rows of a lane, starting at ``first`` and wrapping at the end of the ring."""
    nodes = -(-ring.length // FANOUT)
    count = min(ring.rows_per_add, ring.rows_per_add // FANOUT + 4, nodes)
    return (first // FANOUT + jnp.arange(count, dtype=jnp.int32)) % nodes


def _put(level: Array, lane: Array, entry: Array, value: Array | float) -> Array:
    """Return ``level`` with ``value`` written to some entries; entries beyond the last node are dropped."""
    return level.at[lane, entry // FANOUT, entry % FANOUT].set(value, mode="drop")


def _sum_up(levels: tuple[Array, ...], lane: Array, node: Array) -> tuple[Array, ...]:
    """Return the levels with the sums above some nodes of the lowest level recomputed."""
    summed = list(levels)
    for i in range(len(levels) - 1):
        total = gather_rows(summed[i], lane, node).sum(-1)
        summed[i + 1] = _put(summed[i + 1], lane, node, total)
        node = node // FANOUT
    return tuple(summed)


def draw(exponents: Exponents, ring: Ring, state: PrioritisedState, key: Key, batch_size: int) -> Draw:
    total, down = state.levels[-1].sum((1, 2)), [*reversed(state.levels)]
    lanes = total.shape[0]
    over_lanes = _over_lanes(total) if lanes > 1 else []
    uniforms = fast_random.uniform(key, (len(over_lanes) + len(down), batch_size))
    point, lane, row = (jnp.arange(batch_size) + uniforms[0]) / batch_size, *jnp.zeros((2, batch_size), jnp.int32)
    for depth, level in enumerate([*over_lanes, *down]):
        if FANOUT**depth > batch_size:  # nodes narrower than the strata: the point has few float32 digits left
            point = uniforms[depth]
        if depth < len(over_lanes):
            child, _, point = _choose(level[lane], point)
            lane = lane * FANOUT + child
        else:
            child, leaf, point = _choose(gather_rows(level, lane, row), point)
            row = row * FANOUT + child
    found = leaf > 0
    # The exponent −β is negative, so the smallest leaf has the largest weight; the sum and N cancel.
    least = jnp.min(jnp.where(found, leaf, jnp.inf))
    weight = jnp.where(found, (least / jnp.where(found, leaf, 1.0)) ** exponents.importance, 0.0)
    return Draw(row, lane, weight, found, divisor=(total.sum() / least) ** exponents.importance)


def _over_lanes(total: Array) -> list[Array]:
    """Return the levels of a sum tree over the lanes' totals, f32[nodes, FANOUT] each, the root first."""
    levels: list[Array] = []
    while not levels or total.shape[0] > 1:
        total = jnp.pad(total, (0, -total.shape[0] % FANOUT)).reshape(-1, FANOUT)
        levels, total = [total, *levels], total.sum(1)
    return levels


def _choose(children: Array, point: Array) -> tuple[Array, Array, Array]:
    """Choose the child, of f32[N, FANOUT], in which each ``point`` lies, given as a fraction of the children's sum.

    A child of value 0 is never chosen, regardless of rounding, unless all are 0; then it is the first.

    Returns:
      The child's index, its value, and the position of the point within it, in [0, 1].
    """
    # The cumulative sum as a matrix product: XLA compiles cumsum to a reduce-window, which takes several times as long.
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


def update(exponents: Exponents, ring: Ring, state: PrioritisedState, draw: Draw, priorities: Array) -> PrioritisedState:
    if priorities.shape != draw.row.shape:
        raise ValueError(
            f"priorities has shape {priorities.shape} and must have one number for each of the draw's {draw.row.shape} rows: "
            "reduce it, for example to the mean of |TD error|"
        )
    leaf = (jnp.clip(priorities.astype(jnp.float32), 0.0, LARGEST) + SMALLEST) ** exponents.priority
    current = _of(gather_rows(state.levels[0], draw.env, draw.row // FANOUT), draw.row % FANOUT)
    known = draw.valid & (current > 0) & ~jnp.isnan(leaf)
    # Write 0, then the maximum: with plain writes, the order would decide for rows that were drawn twice.
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

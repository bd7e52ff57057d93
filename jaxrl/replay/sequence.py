"""Sequences of rows, stored with the recurrent carry at their start (R2D2, Kapturowski et al. 2019).

There are two rings that cover the same time. The first, a ring as in ``uniform_replay``, stores every row. The second, any other
replay, such as a prioritised one, stores a *start* every ``period`` rows. A start holds the carry; draws select starts.
``sequences`` makes the batch for the loss. Burn-in is the first rows of a sequence. Consecutive sequences overlap by their length
minus the period.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, ReplayFn, Rows, bind, of_all_agents, uniform
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.uniform import ReplayState, Ring, make_ring
from jaxrl.rollout.agents import environment_of
from jaxrl.rollout.autoreset import next_input
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import check_count
from jaxrl.types import Array, Key, PyTree, StepInput


class CarriedRows(NamedTuple):
    """Rows to add, with their carries; an example of one row, unbatched, for ``init``."""

    rows: Any
    """[T, B, ...], a NamedTuple with ``valid``, like ``ReplayRow``."""
    carry: PyTree
    """[T / period, B, ...]: the carry before row 0, row ``period``, and so on; ``Rollout.carry[None]`` if the period is T."""

    @property
    def valid(self) -> Array:
        return self.rows.valid


class Start(NamedTuple):
    """Row of the replay of starts."""

    carry: PyTree
    valid: Array
    """bool, always True: a sequence may begin at any row, because rows that are not valid are left out of the loss."""


class SequenceState(NamedTuple):
    """The ring of rows, and the state of the replay of starts."""

    rows: ReplayState
    starts: Any


class Parts(NamedTuple):
    """Static data, the first argument of this replay's functions."""

    ring: Ring
    starts: Replay
    period: int
    num_agents: int


@component("value")
def sequence_replay(starts: ReplayFn | None = None, *, period: int | None = None, num_agents: int = 0) -> ReplayFn:
    """Return a function that makes a replay of whole sequences.

    A sequence begins every ``period`` rows of each environment, and is drawn with its carry as ``Draw.extras``. A replay built
    with ``after`` keeps after + 1 rows of each sequence: with burn-in b, l rows to learn from and n-step returns,
    after = b + l − 1 + n. No sequence crosses the boundary between the newest and the oldest row of the ring. Sequences may cross
    the end of an episode, where a row is not valid and the next one is ``is_first``, and a discontinuity
    (``mark_discontinuity``). ``add`` takes ``CarriedRows``. The capacity per environment is rounded down to a multiple of the
    period.

    Args:
      starts: function that makes the replay of starts, which draws starts and has one priority per sequence; default:
        ``prioritised_replay`` with the paper's α of 0.9. Its weights are those for β = 1; R2D2 raises them to the power
        ``importance_exponent``.
      period: number of rows between starts. It must divide the rows of every ``add``. None: the rows of an ``add``, so that a
        rollout's carry suffices. The paper has 40, with 80 rows to learn from.
      num_agents: number of agents whose sequences are drawn together, with one priority; 0: those of lanes are drawn alone.
        Carries of ``Draw.extras`` are then [N, A, ...], and ``Draw.env`` is the lane of the first agent.

    Raises:
      ValueError: the period is less than 1. The returned function raises it if the period does not divide the rows of an ``add``,
        or the capacity does not hold a sequence.
    """
    if period is not None:
        period = check_count("period", period)
    draws = starts or prioritised_replay(priority_exponent=0.9)
    return partial(make_sequence_replay, starts=draws, period=period, num_agents=num_agents)


@component("replay")
def make_sequence_replay(
    capacity: int,
    num_envs: int,
    rows_per_add: int,
    *,
    before: int,
    after: int,
    starts: ReplayFn,
    period: int | None,
    num_agents: int,
) -> Replay:
    """Make the replay of ``sequence_replay``, which describes the last three arguments."""
    whole = make_ring(capacity, num_envs, rows_per_add, before=before, after=after)
    every = whole.rows_per_add if period is None else period
    if whole.rows_per_add % every:
        raise ValueError(
            f"period={every} must divide the {whole.rows_per_add} rows of an add: change the period or rollout_length"
        )
    earlier, later = -(-whole.before // every), whole.after // every
    if whole.capacity // every < (periods := earlier + 1 + later):
        raise ValueError(
            f"capacity={whole.capacity} rows per environment do not hold a sequence: {periods * every} are needed "
            f"for {whole.after + 1} rows with {whole.before} before them, in periods of {every}"
        )
    count = whole.capacity // every
    ring = whole._replace(capacity=count * every)
    starts_replay = starts(count, whole.num_envs // max(1, num_agents), whole.rows_per_add // every, before=earlier, after=later)
    parts = Parts(ring, starts_replay, every, num_agents)
    return bind(parts, (init, add, draw, take, update, mark_discontinuity), starts_replay.prioritised)


def init(parts: Parts, example: CarriedRows) -> SequenceState:
    carry, each = example.carry, parts.num_agents
    if each:
        carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (each, *x.shape)), carry)
    return SequenceState(uniform.init(parts.ring, example.rows), parts.starts.init(Start(carry, jnp.array(True))))


def add(parts: Parts, state: SequenceState, rows: Rows, env_id: Array) -> SequenceState:
    if not isinstance(rows, CarriedRows):
        raise TypeError(f"this replay stores CarriedRows, rows with their recurrent carries, not {type(rows).__name__}")
    number, carry = environment_of(env_id, parts.num_agents), rows.carry
    if parts.num_agents:
        carry = jax.tree.map(lambda x: x.reshape(len(x), len(number), -1, *x.shape[2:]), carry)
    start = Start(carry, jnp.ones((parts.ring.rows_per_add // parts.period, len(number)), bool))
    return SequenceState(uniform.add(parts.ring, state.rows, rows.rows, env_id), parts.starts.add(state.starts, start, number))


def draw(parts: Parts, state: SequenceState, key: Key, batch_size: int) -> Draw:
    drawn = parts.starts.draw(state.starts, key, batch_size)
    carry = parts.starts.take(state.starts, drawn, 0).carry
    return drawn._replace(row=drawn.row * parts.period, env=drawn.env * max(1, parts.num_agents), extras=carry)


def take(parts: Parts, state: SequenceState, draw: Draw, offset: int | Array) -> Any:
    return uniform.take(parts.ring, state.rows, draw, offset)


def update(parts: Parts, state: SequenceState, draw: Draw, priorities: Array) -> SequenceState:
    start = draw._replace(row=draw.row // parts.period, env=draw.env // max(1, parts.num_agents), extras=())
    return state._replace(starts=parts.starts.update(state.starts, start, priorities))


def mark_discontinuity(parts: Parts, state: SequenceState) -> SequenceState:
    return state._replace(rows=uniform.mark_discontinuity(parts.ring, state.rows))


class Sequences(NamedTuple):
    """A batch for the loss, time-major like a ``Rollout``: L rows of N sequences."""

    inputs: StepInput
    """[L + 1, N]. ``inputs[t + 1].obs`` is the observation that row t reached."""
    action: Array
    """[L, N, ...]"""
    reward: Array
    terminated: Array
    truncated: Array
    """bool[L, N]: the episode ends or is cut by a discontinuity after this row, without terminating. The value beyond is
    V(inputs[t + 1])."""
    valid: Array
    """bool[L, N]: False for all rows of a draw that is not valid."""
    carry: PyTree
    """[N, ...] before row 0, as used when acting."""
    weight: Array
    """f32[N]: ``Draw.weight``."""
    extras: PyTree = ()
    """[L + 1, N, ...]: those of the rows, and of the row after them."""


def sequences(replay: Replay, state: Any, draw: Draw, length: int, num_agents: int = 0) -> Sequences:
    """Return the drawn sequences, [length, N]: burn-in, then the rows to learn from, then further rows for n-step returns.

    Args:
      replay: a replay of ``ReplayRow``s, built with ``before=1`` and ``after=length``: a ``sequence_replay``, or another, whose
        sequences begin anywhere and have no carry.
      state: the replay's state.
      draw: [N].
      length: number of rows of a sequence.
      num_agents: that of a replay whose agents are drawn together; then N is the number of their sequences.
    """
    draw = of_all_agents(draw, num_agents)
    offset = jnp.arange(-1, length + 1, dtype=jnp.int32)
    size = draw.row.shape[0]
    # One gather of all rows, [(length + 2) · N].
    many = Draw(*(jnp.tile(x, length + 2) for x in draw[:4]))
    flat = replay.take(state, many, jnp.repeat(offset, size))
    rows = jax.tree.map(lambda x: x.reshape((length + 2, size, *x.shape[1:])), flat)
    parts = (slice(0, -1), slice(1, -1), slice(2, None))
    before, current, after = (jax.tree.map(lambda x, part=part: x[part], rows) for part in parts)
    obs = jax.tree.map(lambda x: x[1:], rows.obs)
    return Sequences(
        inputs=next_input(obs, before.action, before.reward, before.valid),
        action=current.action,
        reward=current.reward,
        terminated=current.terminated & current.valid,
        truncated=current.valid & ~after.valid & ~current.terminated,
        valid=current.valid & draw.valid,
        carry=draw.extras,
        weight=draw.weight,
        extras=jax.tree.map(lambda x: x[1:], rows.extras),
    )


def swap_axes(batch: Sequences) -> Sequences:
    """Swap the time and sequence axes. Batches are split between updates along the first axis."""
    rows: Any = batch._replace(carry=(), weight=())  # type: ignore[arg-type]
    return jax.tree.map(lambda x: x.swapaxes(0, 1), rows)._replace(carry=batch.carry, weight=batch.weight)


def sequence_priorities(errors: Array, valid: Array, eta: Array | float = 0.9) -> Array:
    """Return η·max |δ| + (1 − η)·mean |δ| over the valid rows of each sequence, f32[N]; 0 if no row is valid (section 2.3).

    Args:
      errors: f32[L, N], TD errors δ of the rows that were learnt from.
      valid: bool[L, N].
      eta: η in [0, 1].
    """
    size = jnp.where(valid, jnp.abs(errors), 0.0)
    return eta * size.max(0) + (1.0 - eta) * size.sum(0) / jnp.maximum(valid.sum(0), 1)

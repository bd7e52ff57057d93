"""Hindsight experience replay (Andrychowicz et al. 2017): rows as if what their episode came to had been its goal.

Around any other replay. With each row goes the number of its episode, and one table per lane says where episodes begin. An
episode ends where the next one begins, or at the newest row, so the rows from which a goal can be taken are known after two
look-ups, whatever the capacity and however long the episode. It may be longer than the lane: then what is left of it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, ReplayFn, Rows
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.uniform import check_env_id, check_offset
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.settings.validation import Range, check_number
from jaxrl.spaces.goals import ACHIEVED, DESIRED
from jaxrl.types import Array, ComputeRewardFn, Key, PyTree
from jaxrl.xla.fast_random import plain, unrolled

Strategy = Literal["future", "final", "episode"]


class NumberedRow(NamedTuple):
    """What the replay inside stores: a row, and where it stands in its lane. Every row is part of an episode; the reset row
    belongs to the one that ended, whose last observation it holds."""

    row: Any
    episode: Array
    """i32: which episode of its lane, modulo the entries of ``HindsightState.first``."""
    number: Array
    """i32: which row of its lane."""
    valid: Array


class HindsightState(NamedTuple):
    replay: Any
    """Of the replay inside."""
    first: Array
    """i32[entries, B]: the number of the first row of each episode. Never more episodes than entries are stored at once."""
    episode: Array
    """i32[B]: that of the newest row."""
    number: Array
    """i32[B]: that of the next row."""
    ended: Array
    """bool[B]: the next row begins an episode."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"first": 1, "episode": 0, "number": 0, "ended": 0}


class Relabelling(NamedTuple):
    """``Draw.extras``, [batch]: with it, ``take`` is a function of the rows alone."""

    goal: PyTree
    """What a later row (or, with "episode", any other) of the same episode achieved."""
    relabelled: Array
    """bool: whether it takes the place of the desired goal."""
    episode: Array
    """i32: that of the drawn row. Other rows of its window may be of others, and stay as they are."""


class Hindsight(NamedTuple):
    """What the functions of this replay take first."""

    replay: Replay
    compute_reward: ComputeRewardFn
    strategy: Strategy
    share: float
    capacity: int
    entries: int
    before: int
    after: int


def hindsight_replay(
    replay: ReplayFn, compute_reward: ComputeRewardFn, *, strategy: Strategy = "future", share: float = 0.8
) -> ReplayFn:
    """``replay`` with a share of what is drawn relabelled: another desired goal, and the reward and the termination for it.

    Of an episode sₛ, …, sₑ₊₁, whose row t reached s₍ₜ₊₁₎, a drawn row t takes as its goal what was achieved in

    * "future": one of sₜ₊₁, …, sₑ₊₁, each as likely (section 4.5, where it is best);
    * "final": sₑ₊₁;
    * "episode": one of sₛ₊₁, …, sₑ₊₁, each as likely.

    e is the newest row where the episode still goes on. All rows of the window that are of the same episode get the same goal, so
    n-step returns are those of one goal; they stop where that goal is reached. No goal comes from beyond an end, a seam of the
    ring, or a resume (``mark_discontinuity``). What is not relabelled stays as the environment gave it. A prioritised replay inside goes on
    weighing rows, whatever goal they had.

    Args:
      replay: what stores and draws, such as ``uniform_replay``; asked for one row more after a drawn one. Its rows are
        NamedTuples with ``obs``, a dict with ``achieved_goal`` and ``desired_goal``, ``reward``, ``terminated`` and ``valid``,
        as ``jaxrl.replay.transitions.ReplayRow`` is.
      compute_reward: ``Env.compute_reward``.
      share: of the draws; 0.8 are the paper's four goals in hindsight (k = 4) for each one that was desired.

    Raises:
      ValueError: an unknown strategy, or a share outside [0, 1].
    """
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy={strategy!r} must be one of {', '.join(map(repr, get_args(Strategy)))}")
    check_number("share", share, Range(0, 1))

    def make(capacity: int, num_envs: int, rows_per_add: int, /, *, before: int, after: int) -> Replay:
        inside = replay(capacity, num_envs, rows_per_add, before=before, after=after + 1)
        # An episode has a row at least. Rows of a round that is not complete lie beside those that they will replace.
        entries = capacity + rows_per_add
        part = Hindsight(inside, compute_reward, strategy, share, capacity, entries, before, after)
        return Replay(
            partial(init, part, num_envs),
            partial(add, part),
            partial(draw, part),
            partial(take, part),
            partial(update, part),
            partial(mark_discontinuity, part),
            inside.prioritised,
        )

    return make


def init(part: Hindsight, num_envs: int, example: Rows) -> HindsightState:
    number, lanes = jnp.zeros((), jnp.int32), jnp.zeros(num_envs, jnp.int32)
    rows = part.replay.init(NumberedRow(example, number, number, example.valid))
    first = jnp.zeros((part.entries, num_envs), jnp.int32)
    return HindsightState(rows, first, lanes, jnp.zeros_like(lanes), jnp.ones(num_envs, bool))


def add(part: Hindsight, state: HindsightState, rows: Rows, env_id: Array) -> HindsightState:
    lanes = state.number.shape[0]
    check_env_id(env_id, lanes)
    length, batch = rows.valid.shape
    lane = 0 if batch == lanes else env_id[0] % lanes

    def part_of(x: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, lane, batch)

    def put(x: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(x, new, lane, 0)

    begins = jnp.concatenate([part_of(state.ended)[None], ~rows.valid[:-1]])
    episode = (part_of(state.episode) + jnp.cumsum(begins, 0, dtype=jnp.int32)) % part.entries
    number = part_of(state.number) + jnp.arange(length, dtype=jnp.int32)[:, None]
    entry = jnp.where(begins, episode, part.entries)  # beyond the last one, for which nothing is written
    return HindsightState(
        replay=part.replay.add(state.replay, NumberedRow(rows, episode, number, rows.valid), env_id),
        first=state.first.at[entry, lane + jnp.arange(batch)].set(number, mode="drop"),
        episode=put(state.episode, episode[-1]),
        number=put(state.number, number[-1] + 1),
        ended=put(state.ended, ~rows.valid[-1]),
    )


def draw(part: Hindsight, state: HindsightState, key: Key, batch_size: int) -> Draw:
    draw_key, goal_key, share_key = jax.random.split(unrolled(key), 3)
    drawn = part.replay.draw(state.replay, plain(draw_key), batch_size)
    row = part.replay.take(state.replay, drawn, 0)
    lowest, highest = _same_episode(part, state, row, drawn.env)
    if part.strategy == "final":
        offset = highest
    else:
        offset = jax.random.randint(goal_key, (batch_size,), lowest if part.strategy == "episode" else 1, highest + 1)
    goal = part.replay.take(state.replay, drawn, offset).row.obs[ACHIEVED]
    relabelled = jax.random.uniform(share_key, (batch_size,)) < part.share
    return drawn._replace(extras=Relabelling(goal, relabelled, row.episode))


def _same_episode(part: Hindsight, state: HindsightState, row: NumberedRow, env: Array) -> tuple[Array, Array]:
    """How far from valid rows the first and the last row lie that hold what a row of the same episode reached: i32[batch] both.

    Differences of row numbers are right also where those have gone round 32 bits.
    """
    first = gather_rows(state.first, row.episode, env)
    next_first = gather_rows(state.first, (row.episode + 1) % part.entries, env)
    count = state.number[env]
    highest = jnp.where(row.episode == state.episode[env], count, next_first) - 1 - row.number
    stored = count - part.capacity - row.number
    return jnp.minimum(jnp.maximum(first + 1 - row.number, stored), 1), highest


def take(part: Hindsight, state: HindsightState, draw: Draw, offset: int | Array) -> Any:
    check_offset(offset, part.before, part.after)
    stored, after = (part.replay.take(state.replay, draw, offset + i) for i in (0, 1))
    extras: Relabelling = draw.extras
    ours = extras.relabelled & (stored.episode == extras.episode)
    row = stored.row

    def where(mask: Array, new: Array, old: Array) -> Array:
        return jnp.where(expand_mask(mask, old), new, old)

    desired = jax.tree.map(partial(where, ours), extras.goal, row.obs[DESIRED])
    # The row behind a valid one is of the same episode, and holds what it reached.
    reward, terminated = jax.vmap(part.compute_reward)(after.row.obs[ACHIEVED], extras.goal)
    ours &= stored.valid
    return row._replace(
        obs={**row.obs, DESIRED: desired},
        reward=where(ours, reward, row.reward),
        terminated=where(ours, terminated, row.terminated),
        valid=stored.valid,
    )


def update(part: Hindsight, state: HindsightState, draw: Draw, priorities: Array) -> HindsightState:
    return state._replace(replay=part.replay.update(state.replay, draw, priorities))


def mark_discontinuity(part: Hindsight, state: HindsightState) -> HindsightState:
    return state._replace(replay=part.replay.mark_discontinuity(state.replay), ended=jnp.ones_like(state.ended))

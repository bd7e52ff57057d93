"""Hindsight experience replay (Andrychowicz et al. 2017): drawn rows with goals that their episodes achieved.

The functions wrap any other replay. Each row is stored with the number of its episode, and a table per lane holds the first row
of each episode. An episode ends where the next one begins, or at the newest row. So two look-ups find the rows from which a goal
can be taken, independent of the capacity and the episode's length. An episode may be longer than the lane; then the rows that are
still stored count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, ReplayFn, Rows, bind
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.uniform import check_env_id, check_offset
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import Range, check_number
from jaxrl.spaces.goals import ACHIEVED, DESIRED
from jaxrl.types import Array, ComputeRewardFn, Key, PyTree
from jaxrl.xla import fast_random

Strategy = Literal["future", "final", "episode"]


class NumberedRow(NamedTuple):
    """Row of the inner replay: a row with its position in its lane.

    Every row is part of an episode. A reset row belongs to the episode that ended, whose last observation it holds.
    """

    row: Any
    episode: Array
    """i32: number of the episode in its lane, modulo the entries of ``HindsightState.first``."""
    number: Array
    """i32: number of the row in its lane."""
    valid: Array


class HindsightState(NamedTuple):
    """State of the inner replay, and the table of episodes."""

    replay: Any
    first: Array
    """i32[entries, B]: number of the first row of each episode. At most ``entries`` episodes are stored at once."""
    episode: Array
    """i32[B]: episode of the newest row."""
    number: Array
    """i32[B]: number of the next row."""
    ended: Array
    """bool[B]: the next row begins an episode."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"first": 1, "episode": 0, "number": 0, "ended": 0}


class Relabelling(NamedTuple):
    """``Draw.extras``, [batch]: the goals drawn, so that ``take`` draws no random numbers."""

    goal: PyTree
    """Goal achieved by a later row of the same episode, or by any of its rows with the strategy "episode"."""
    relabelled: Array
    """bool: ``goal`` replaces the desired goal."""
    episode: Array
    """i32: episode of the drawn row. Rows of its window that belong to another episode are not relabelled."""


class Hindsight(NamedTuple):
    """Static data, the first argument of this replay's functions."""

    replay: Replay
    compute_reward: ComputeRewardFn
    strategy: Strategy
    share: float
    capacity: int
    num_envs: int
    entries: int
    before: int
    after: int


@component("value")
def hindsight_replay(
    replay: ReplayFn, compute_reward: ComputeRewardFn, *, strategy: Strategy = "future", share: float = 0.8
) -> ReplayFn:
    """Wrap ``replay`` to relabel a share of the draws with another desired goal, and the reward and termination for that goal.

    Consider an episode sₛ, …, sₑ₊₁, whose row t reached s₍ₜ₊₁₎. The new goal of a drawn row t is the achieved goal of

    * "future": one of sₜ₊₁, …, sₑ₊₁, chosen uniformly (the best in section 4.5);
    * "final": sₑ₊₁;
    * "episode": one of sₛ₊₁, …, sₑ₊₁, chosen uniformly.

    In an unfinished episode, sₑ₊₁ is the observation of the newest row. All rows of a window that belong to the drawn row's
    episode get the same goal, so an n-step return has a single goal, and stops where that goal is reached. No goal is taken from
    beyond the end of an episode, the boundary between the newest and the oldest row of the ring, or a discontinuity
    (``mark_discontinuity``). Rows that are not relabelled stay as the environment returned them. If the inner replay is
    prioritised, a row has one priority, whichever goal it was drawn with.

    Args:
      replay: function that makes the inner replay, such as ``uniform_replay``; it is built with one more row after the drawn one.
        Its rows are NamedTuples with ``obs``, a dict with ``achieved_goal`` and ``desired_goal``, ``reward``, ``terminated`` and
        ``valid``, like ``jaxrl.replay.transitions.ReplayRow``.
      compute_reward: ``Env.compute_reward``.
      strategy: "future", "final" or "episode".
      share: share of the draws to relabel; 0.8 corresponds to the paper's k = 4 hindsight goals per desired goal.

    Raises:
      ValueError: an unknown strategy, or a share outside [0, 1].
    """
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy={strategy!r} must be one of {', '.join(map(repr, get_args(Strategy)))}")
    check_number("share", share, Range(0, 1))

    def make(capacity: int, num_envs: int, rows_per_add: int, /, *, before: int, after: int) -> Replay:
        inside = replay(capacity, num_envs, rows_per_add, before=before, after=after + 1)
        # Every episode has at least one row. Rows of an incomplete round are stored in addition to those that they will replace.
        entries = capacity + rows_per_add
        part = Hindsight(inside, compute_reward, strategy, share, capacity, num_envs, entries, before, after)
        return bind(part, (init, add, draw, take, update, mark_discontinuity), inside.prioritised)

    return make


def init(part: Hindsight, example: Rows) -> HindsightState:
    number, lanes = jnp.zeros((), jnp.int32), jnp.zeros(part.num_envs, jnp.int32)
    rows = part.replay.init(NumberedRow(example, number, number, example.valid))
    first = jnp.zeros((part.entries, part.num_envs), jnp.int32)
    return HindsightState(rows, first, lanes, jnp.zeros_like(lanes), jnp.ones(part.num_envs, bool))


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
    entry = jnp.where(begins, episode, part.entries)  # an index beyond the last entry is dropped
    return HindsightState(
        replay=part.replay.add(state.replay, NumberedRow(rows, episode, number, rows.valid), env_id),
        first=state.first.at[entry, lane + jnp.arange(batch)].set(number, mode="drop"),
        episode=put(state.episode, episode[-1]),
        number=put(state.number, number[-1] + 1),
        ended=put(state.ended, ~rows.valid[-1]),
    )


def draw(part: Hindsight, state: HindsightState, key: Key, batch_size: int) -> Draw:
    draw_key, goal_key, share_key = fast_random.split(key, 3)
    drawn = part.replay.draw(state.replay, draw_key, batch_size)
    row = part.replay.take(state.replay, drawn, 0)
    lowest, highest = _same_episode(part, state, row, drawn.env)
    if part.strategy == "final":
        offset = highest
    else:
        offset = fast_random.randint(goal_key, (batch_size,), lowest if part.strategy == "episode" else 1, highest + 1)
    goal = part.replay.take(state.replay, drawn, offset).row.obs[ACHIEVED]
    relabelled = fast_random.uniform(share_key, (batch_size,)) < part.share
    return drawn._replace(extras=Relabelling(goal, relabelled, row.episode))


def _same_episode(part: Hindsight, state: HindsightState, row: NumberedRow, env: Array) -> tuple[Array, Array]:
    """Return offsets from valid rows to the first and last row that hold a state reached in the same episode, i32[batch] each.

    Differences of row numbers are correct even after the numbers overflow 32 bits.
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
    # The row after a valid one belongs to the same episode, and holds the state that it reached.
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

"""A replay that draws from a dataset, which is attached to a learner for a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, bind
from jaxrl.replay.dataset import Dataset
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.uniform import check_offset
from jaxrl.types import Array, Key
from jaxrl.xla.fast_random import integers_below


class WithData(NamedTuple):
    """State of a replay that draws from a dataset."""

    ring: Any
    """State of the replay of rows that the agent collects itself; () without one."""
    data: Any
    """The ``Dataset`` during a step, and () between steps."""


def attach(learner: Any, data: Dataset) -> Any:
    """Return a learner whose replay holds the dataset, for a step."""
    return learner._replace(replay=learner.replay._replace(data=data))


def detach(learner: Any) -> Any:
    """Return a learner as it is between steps."""
    return learner._replace(replay=learner.replay._replace(data=()))


class Window(NamedTuple):
    before: int
    after: int
    best: float


def dataset_replay(*, before: int = 0, after: int = 1, best: float = 1.0) -> Replay:
    """Return a replay that draws from the dataset of its state, and stores nothing.

    Args:
      best: fraction of the episodes to draw from, those with the highest returns, rounded down to at least one.
    """
    return bind(Window(before, after, best), (_init, _add, _draw, _take, _update, _mark_discontinuity))


def _init(window: Window, example: Any) -> WithData:
    return WithData((), ())


def _add(window: Window, state: WithData, rows: Any, env_id: Array) -> WithData:
    raise TypeError("a dataset takes no rows: the agent was built with data=…, so it learns from these alone")


def _draw(window: Window, state: WithData, key: Key, batch_size: int) -> Draw:
    """Draw valid rows, all of the best episodes with the same probability."""
    origins, rows_of_best = state.data.origins, state.data.rows_of_best
    number = rows_of_best[max(1, int(window.best * len(rows_of_best))) - 1]
    row = origins[integers_below(key, (batch_size,), number)]
    return Draw(row, jnp.zeros_like(row), jnp.ones(batch_size, jnp.float32), jnp.ones(batch_size, bool))


def _take(window: Window, state: WithData, draw: Draw, offset: int | Array) -> Any:
    check_offset(offset, window.before, window.after)
    records = state.data.records
    row = draw.row if isinstance(offset, int) and offset == 0 else (draw.row + offset) % records.words.shape[0]
    return jax.tree.map(lambda x: gather_rows(x, row, draw.env), records).unpack()


def _update(window: Window, state: WithData, draw: Draw, priorities: Array) -> WithData:
    return state


def _mark_discontinuity(window: Window, state: WithData) -> WithData:
    return state

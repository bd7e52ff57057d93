"""Replay that draws from a dataset, which is attached to a learner for a step, and replay that draws from one and from the rows
that an agent collects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.replay import Draw, Replay, bind
from jaxrl.replay.dataset import Dataset
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.uniform import check_offset
from jaxrl.types import Array, Key, PyTree
from jaxrl.xla.fast_random import integers_below, split


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


def with_attached(update: Callable[..., tuple[Any, Any]], data: Any) -> Callable[..., tuple[Any, Any]]:
    """Return ``update``, (learner, …) -> (learner, metrics), on a learner whose replay holds the dataset in the meantime.

    Args:
      data: the dataset; () without one.
    """
    if isinstance(data, tuple):
        return update

    def attached(learner: Any, *arguments: Any) -> tuple[Any, Any]:
        learner, metrics = update(attach(learner, data), *arguments)
        return detach(learner), metrics

    return attached


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
    number = rows_of_best[max(1, math.floor(window.best * len(rows_of_best) + 1e-9)) - 1]  # 0.29 * 100 is 28.999…
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


# --------------------------------------------------------------------------------------------------- a dataset and collected rows


class Mixture(NamedTuple):
    ring: Replay
    data: Replay
    ratio: float

    def parts(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of a draw of this size that are from the data, and those from the ring. They alternate, so that
        each batch has its share of both."""
        reached = np.floor(np.round(np.arange(size + 1) * self.ratio, 6))
        of_data = np.diff(reached) > 0
        return np.flatnonzero(of_data), np.flatnonzero(~of_data)

    def merged(self, size: int, of_data: PyTree, of_ring: PyTree) -> PyTree:
        """Return the leaves [size, ...] of those of both parts."""
        order = np.argsort(np.concatenate(self.parts(size)))
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y])[order], of_data, of_ring)

    def of_ring(self, draw: Draw) -> Draw:
        """Return the part of a draw that is from the ring."""
        at = self.parts(len(draw.row))[1]
        return jax.tree.map(lambda x: x[at], draw._replace(divisor=()))._replace(divisor=draw.divisor)


def drawn_from_data(replay: Replay, size: int) -> np.ndarray:
    """Return which rows of a draw of this size are from the dataset, bool[size].

    Args:
      replay: one that this module makes.
    """
    part: Window | Mixture = replay.draw.args[0]  # type: ignore[attr-defined]  # a partial, see jaxrl.replay.bind
    return np.isin(np.arange(size), part.parts(size)[0]) if isinstance(part, Mixture) else np.ones(size, bool)


def mixed_replay(ring: Replay, ratio: float, *, before: int, after: int) -> Replay:
    """Return a replay that stores rows in ``ring``, and draws from these and from the dataset of its state.

    Args:
      ratio: fraction of a batch to draw from the data (Nakamoto et al. 2023; Ball et al. 2023). Times the number of drawn rows it
        must be whole.
    """
    functions = (_init_mixture, _add_to_ring, _draw_both, _take_both, _update_ring, _mark_ring)
    return bind(Mixture(ring, dataset_replay(before=before, after=after), ratio), functions, ring.prioritised)


def _init_mixture(mixture: Mixture, example: Any) -> WithData:
    return WithData(mixture.ring.init(example), ())


def _add_to_ring(mixture: Mixture, state: WithData, rows: Any, env_id: Array) -> WithData:
    return state._replace(ring=mixture.ring.add(state.ring, rows, env_id))


def _draw_both(mixture: Mixture, state: WithData, key: Key, batch_size: int) -> Draw:
    of_data, of_ring = (len(part) for part in mixture.parts(batch_size))
    for_data, for_ring = split(key)
    stored = mixture.ring.draw(state.ring, for_ring, of_ring)
    drawn = mixture.data.draw(state, for_data, of_data)
    extras = jax.tree.map(lambda x: jnp.zeros((of_data, *x.shape[1:]), x.dtype), stored.extras)
    both = mixture.merged(batch_size, drawn._replace(extras=extras), stored._replace(divisor=()))
    return both._replace(divisor=stored.divisor)


def _take_both(mixture: Mixture, state: WithData, draw: Draw, offset: int | Array) -> Any:
    at_data, at_ring = mixture.parts(size := len(draw.row))
    of_part = lambda at: offset if isinstance(offset, int) else offset[at]  # noqa: E731
    drawn = draw._replace(extras=(), divisor=())
    of_data = mixture.data.take(state, jax.tree.map(lambda x: x[at_data], drawn), of_part(at_data))
    of_ring = mixture.ring.take(state.ring, mixture.of_ring(draw), of_part(at_ring))
    return mixture.merged(size, of_data, of_ring)


def _update_ring(mixture: Mixture, state: WithData, draw: Draw, priorities: Array) -> WithData:
    at_ring = mixture.parts(len(draw.row))[1]
    return state._replace(ring=mixture.ring.update(state.ring, mixture.of_ring(draw), priorities[at_ring]))


def _mark_ring(mixture: Mixture, state: WithData) -> WithData:
    return state._replace(ring=mixture.ring.mark_discontinuity(state.ring))

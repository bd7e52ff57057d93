"""Replay: pure ring buffers over rows of ``Rollout``s. This module is their contract; each kind of buffer has its own module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrl.rollout.agents import as_lanes, lanes_of
from jaxrl.types import Array, Key, PyTree


class Rows(Protocol):
    """Rows to store: a NamedTuple of arrays [T, B, ...], or of the arrays of one row, with a ``valid`` leaf."""

    @property
    def valid(self) -> Array: ...


class Draw(NamedTuple):
    """Drawn rows, [batch]. Each is the origin of a window of rows."""

    row: Array
    """i32, position in the ring."""
    env: Array
    """i32, lane."""
    weight: Array
    """f32, weight of the row in the loss; 1 if all rows are drawn with equal probability."""
    valid: Array
    """bool, False if no valid row was found. Such a draw must not enter the loss."""
    extras: PyTree = ()
    """Further random choices of the replay, used by its ``take``: [batch, ...]."""
    divisor: PyTree = ()
    """f32[]: the largest unnormalised weight, by which the weights were divided; () if all rows are drawn with equal probability.
    If devices draw parts of a batch, ``over_devices`` divides the weights by the largest of all parts instead."""


def over_devices(draw: Draw, axis_name: str | None) -> Draw:
    """Rescale the weights of a device's part of a batch to those of the whole batch."""
    if axis_name is None or isinstance(draw.divisor, tuple):
        return draw
    largest = jax.lax.pmax(draw.divisor, axis_name)
    share = jnp.where(largest > 0, draw.divisor / jnp.where(largest > 0, largest, 1.0), 1.0)
    return draw._replace(weight=draw.weight * share, divisor=largest)


def of_all_agents(draw: Draw, num_agents: int) -> Draw:
    """Return draws of all agents, [N · A], in the environments of drawn lanes, [N]. With ``num_agents`` 0 they are the same."""
    if not num_agents:
        return draw
    lanes, each = lanes_of(draw.env // num_agents, num_agents), lambda x: x.repeat(num_agents, 0)
    return Draw(each(draw.row), lanes, each(draw.weight), each(draw.valid), as_lanes(draw.extras, num_agents), draw.divisor)


class InitReplayFn(Protocol):
    def __call__(self, example: Rows, /) -> Any:
        """Return an empty buffer for rows like this one, unbatched."""
        ...


class AddFn(Protocol):
    def __call__(self, state: Any, rows: Rows, env_id: Array, /) -> Any:
        """Store rows [T, B, ...] of the environments ``env_id`` (i32[B], consecutive).

        Each environment has a lane of the ring: ``env_id`` modulo the number of lanes of the state, which may be a device's
        share. A round, the rows of all lanes, may be added in parts, in any order, each part once. It can be drawn from as soon
        as every lane has its rows.
        """
        ...


class DrawFn(Protocol):
    def __call__(self, state: Any, key: Key, batch_size: int, /) -> Draw:
        """Draw valid rows whose whole window is stored."""
        ...


class TakeFn(Protocol):
    def __call__(self, state: Any, draw: Draw, offset: int | Array, /) -> Any:
        """Return the rows [batch, ...] at ``offset`` from the drawn ones: a number from −before to after, or i32[batch]."""
        ...


class UpdateReplayFn(Protocol):
    def __call__(self, state: Any, draw: Draw, priorities: Array, /) -> Any:
        """Set the priorities of the drawn rows, f32[batch]. A replay without priorities returns the state unchanged."""
        ...


class MarkDiscontinuityFn(Protocol):
    def __call__(self, state: Any, /) -> Any:
        """Mark a discontinuity: the next rows do not follow the stored ones. The newest row of each environment becomes invalid.

        It is called when environments are reset, such as host environments in a resumed run.
        """
        ...


class Replay(NamedTuple):
    """A replay buffer as pure functions, for windows with given numbers of rows before and after the drawn row.

    A window never crosses the boundary between the newest and the oldest row of the ring. It may cross the end of an episode,
    where a row is not ``valid``; ``jaxrl.replay.transitions`` and ``jaxrl.replay.sequence`` handle this. The state declares by
    ``env_axes`` which fields run over environments (see ``jaxrl.types.LearnerState``), and by ``row_fields`` which fields hold
    the rows (see ``jaxrl.types.Algorithm.buffers``).
    """

    init: InitReplayFn
    add: AddFn
    draw: DrawFn
    take: TakeFn
    update: UpdateReplayFn
    mark_discontinuity: MarkDiscontinuityFn
    prioritised: bool = False
    """Draws depend on ``update``, so an algorithm draws before each gradient step and calls ``update`` after it."""


def bind(part: Any, functions: Sequence[Callable[..., Any]], prioritised: bool = False) -> Replay:
    """Return a replay of functions, in the order of its fields, whose first argument is ``part``: sizes and other static data."""
    bound: list[Any] = [*(partial(function, part) for function in functions), prioritised]
    return Replay(*bound)


class ReplayFn(Protocol):
    """Function that makes a replay, as builders call it."""

    def __call__(self, capacity: int, num_envs: int, rows_per_add: int, /, *, before: int, after: int) -> Replay:
        """Return a replay for ``capacity`` rows of each of ``num_envs`` environments, added ``rows_per_add`` at a time."""
        ...

"""Replay: pure ring buffers over rows of ``Rollout``s. This is their contract; each kind of buffer has a file of its own."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrl.types import Array, Key, PyTree


class Rows(Protocol):
    """What is stored: a NamedTuple of arrays [T, B, ...], or of one row's, with a ``valid`` leaf."""

    @property
    def valid(self) -> Array: ...


class Draw(NamedTuple):
    """Rows that were drawn, each the origin of a window: [batch]."""

    row: Array
    """i32, where in the ring"""
    env: Array
    """i32, which lane"""
    weight: Array
    """f32: what a loss counts the row; 1 where all are drawn alike."""
    valid: Array
    """bool: False where no valid row was found; such a draw must carry no weight."""
    extras: PyTree = ()
    """What the replay drew besides, for its own ``take``: [batch, ...]."""
    divisor: PyTree = ()
    """f32[]: what the weights were divided by, their largest. Devices that each draw a part of a batch divide theirs by the
    largest of all parts (``over_devices``). () where all rows are drawn alike."""


def over_devices(draw: Draw, axis_name: str | None) -> Draw:
    """A device's part of a batch, with the weights that it has in the whole of it."""
    if axis_name is None or isinstance(draw.divisor, tuple):
        return draw
    largest = jax.lax.pmax(draw.divisor, axis_name)
    share = jnp.where(largest > 0, draw.divisor / jnp.where(largest > 0, largest, 1.0), 1.0)
    return draw._replace(weight=draw.weight * share, divisor=largest)


class InitReplayFn(Protocol):
    def __call__(self, example: Rows, /) -> Any:
        """An empty buffer for rows like this one, unbatched."""
        ...


class AddFn(Protocol):
    def __call__(self, state: Any, rows: Rows, env_id: Array, /) -> Any:
        """Store rows [T, B, ...] of the environments ``env_id`` (i32[B], consecutive).

        Lanes are environments: the lane of one is ``env_id`` modulo the lanes of the state, which may be a device's share. A
        round may come in parts, in any order, each once; it is drawn from when every lane has its rows.
        """
        ...


class DrawFn(Protocol):
    def __call__(self, state: Any, key: Key, batch_size: int, /) -> Draw:
        """Valid rows whose whole window is stored."""
        ...


class TakeFn(Protocol):
    def __call__(self, state: Any, draw: Draw, offset: int | Array, /) -> Any:
        """The rows [batch, ...] that lie ``offset`` after those drawn: one number from −before to after, or i32[batch]."""
        ...


class UpdateReplayFn(Protocol):
    def __call__(self, state: Any, draw: Draw, priorities: Array, /) -> Any:
        """Take in f32[batch], how much there was to learn from each drawn row. The state itself where all are drawn alike."""
        ...


class MarkDiscontinuityFn(Protocol):
    def __call__(self, state: Any, /) -> Any:
        """Say that the next rows do not follow those stored: the newest row of each environment becomes invalid.

        So no window crosses the seam. For environments that begin anew, as those of a resumed run on the host do.
        """
        ...


class Replay(NamedTuple):
    """A replay buffer as pure functions, built with the window of rows, before and after a drawn one, that it keeps whole.

    A window never crosses the ring's seam between newest and oldest. It does cross the ends of episodes, where rows are not
    ``valid``: what that means for n-step returns or sequences is the business of ``jaxrl.replay.transitions`` and its like.
    The state says by ``env_axes`` which of its fields run over environments (see ``jaxrl.types.LearnerState``), and by
    ``row_fields`` which of them hold the rows (see ``jaxrl.types.Algorithm.buffers``).
    """

    init: InitReplayFn
    add: AddFn
    draw: DrawFn
    take: TakeFn
    update: UpdateReplayFn
    mark_discontinuity: MarkDiscontinuityFn
    prioritised: bool = False
    """What is drawn depends on ``update``, so a rule draws for each gradient step, and updates after it."""


class ReplayFn(Protocol):
    """How builders ask for a replay."""

    def __call__(self, capacity: int, num_envs: int, rows_per_add: int, /, *, before: int, after: int) -> Replay:
        """``capacity`` rows of each of ``num_envs`` environments, ``rows_per_add`` at a time."""
        ...

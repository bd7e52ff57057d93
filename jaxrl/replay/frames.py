"""Stacks of frames stored once per frame: what ``frame_stack`` and Atari's environments put together is rebuilt when sampling.

Around any other replay. An observation of k frames shares k − 1 of them with the one before, so storing the newest of each takes
a k-th of the memory. Of the rows before a drawn one those that are of its episode give the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, ReplayFn
from jaxrl.replay.uniform import check_offset, uniform_replay
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.settings.validation import check_count
from jaxrl.types import Array


class Frames(NamedTuple):
    """What the functions of this replay take first."""

    replay: Replay
    num_frames: int
    axis: int
    before: int
    after: int


def frame_replay(num_frames: int, replay: ReplayFn = uniform_replay, *, axis: int = -1) -> ReplayFn:
    """``replay`` for observations that are ``num_frames`` frames side by side, oldest first, of which it stores the newest.

    ``take`` gives the whole stack, as the environment did: no frame of another episode is in it, and where an episode has not had
    as many, its first one again, as the wrapper ``frame_stack`` has it. ``replay`` is asked for ``num_frames`` − 1 more rows
    before a drawn one, so stacks do not cross the ring's seam; nor do they cross a resume (``mark_discontinuity``).

    Args:
      num_frames: in an observation, one array; its axis holds ``num_frames`` parts of the same size.
      replay: what stores and draws; its rows are NamedTuples with ``obs`` and ``valid``.
      axis: of the observation: −1 for the wrapper ``frame_stack``, 0 for envpool's Atari.

    Raises:
      ValueError: fewer than two frames; and from ``init`` an observation that is not as many.
    """
    num_frames = check_count("num_frames", num_frames, at_least=2)

    def make(capacity: int, num_envs: int, rows_per_add: int, /, *, before: int, after: int) -> Replay:
        inside = replay(capacity, num_envs, rows_per_add, before=before + num_frames - 1, after=after)
        part = Frames(inside, num_frames, axis, before, after)
        functions = {"init": partial(init, part), "add": partial(add, part), "take": partial(take, part)}
        return inside._replace(**functions)  # type: ignore[arg-type]

    return make


def init(part: Frames, example: Any) -> Any:
    return part.replay.init(example._replace(obs=_newest(part, example.obs, 0)))


def add(part: Frames, state: Any, rows: Any, env_id: Array) -> Any:
    return part.replay.add(state, rows._replace(obs=_newest(part, rows.obs, 2)), env_id)


def _newest(part: Frames, obs: Any, leading: int) -> Array:
    """The last frame of observations [*leading, ...]."""
    shape = getattr(obs, "shape", None)
    if shape is None:
        raise ValueError(f"frame_replay takes observations that are one array, not {type(obs).__name__}: use another replay")
    own = shape[leading:]
    if not -len(own) <= part.axis < len(own) or own[part.axis] % part.num_frames:
        raise ValueError(f"observations {[*own]} do not hold {part.num_frames} frames along axis {part.axis}: give another axis")
    axis = leading + part.axis % len(own)
    size = own[part.axis] // part.num_frames
    return jnp.take(obs, jnp.arange(shape[axis] - size, shape[axis]), axis)


def take(part: Frames, state: Any, draw: Draw, offset: int | Array) -> Any:
    check_offset(offset, part.before, part.after)
    row = part.replay.take(state, draw, offset)
    frames, same = [row.obs], jnp.ones_like(row.valid)
    for age in range(1, part.num_frames):
        earlier = part.replay.take(state, draw, offset - age)
        same &= earlier.valid  # a row that is not valid is the last of its episode
        frames.append(jnp.where(expand_mask(same, earlier.obs), earlier.obs, frames[-1]))
    axis = 1 + part.axis % (row.obs.ndim - 1)
    return row._replace(obs=jnp.concatenate(frames[::-1], axis))

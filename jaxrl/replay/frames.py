"""Frame-stacked observations that store each frame once; ``take`` rebuilds the stacks of ``frame_stack`` and Atari environments.

The functions wrap any other replay. An observation of k frames shares k − 1 of them with the previous one, so storing only the
newest frame takes 1/k of the memory. The other frames come from earlier rows of the same episode.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, ReplayFn
from jaxrl.replay.uniform import check_offset, uniform_replay
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import check_count
from jaxrl.types import Array


class Frames(NamedTuple):
    """Static data, the first argument of this replay's functions."""

    replay: Replay
    num_frames: int
    axis: int
    before: int
    after: int


@component("value")
def frame_replay(num_frames: int, replay: ReplayFn = uniform_replay, *, axis: int = -1) -> ReplayFn:
    """Wrap ``replay`` for observations of ``num_frames`` stacked frames, oldest first, so that it stores only the newest frame.

    ``take`` returns the whole stack as the environment gave it. It contains no frame of another episode; missing frames at the
    start of an episode repeat its first frame, as the wrapper ``frame_stack`` does. ``replay`` is built with ``num_frames`` − 1
    more rows before the drawn one, so stacks do not cross the boundary between the newest and the oldest row of the ring. They do
    not cross a discontinuity either (``mark_discontinuity``).

    Args:
      num_frames: number of frames in an observation. The observation is one array, and ``axis`` holds the frames as parts of
        equal size.
      replay: function that makes the inner replay. Its rows are NamedTuples with ``obs`` and ``valid``.
      axis: axis of the observation: −1 for the wrapper ``frame_stack``, 0 for envpool's Atari.

    Raises:
      ValueError: ``num_frames`` is less than 2. ``init`` raises it if the observation does not hold this number of frames.
    """
    num_frames = check_count("num_frames", num_frames, at_least=2)
    return partial(make_frame_replay, num_frames=num_frames, replay=replay, axis=axis)


@component("replay")
def make_frame_replay(
    capacity: int,
    num_envs: int,
    rows_per_add: int,
    *,
    before: int,
    after: int,
    num_frames: int,
    replay: ReplayFn,
    axis: int,
) -> Replay:
    """Make the replay of ``frame_replay``, which describes the last three arguments."""
    inside = replay(capacity, num_envs, rows_per_add, before=before + num_frames - 1, after=after)
    part = Frames(inside, num_frames, axis, before, after)
    return inside._replace(init=partial(init, part), add=partial(add, part), take=partial(take, part))


def init(part: Frames, example: Any) -> Any:
    return part.replay.init(example._replace(obs=_newest(part, example.obs, 0)))


def add(part: Frames, state: Any, rows: Any, env_id: Array) -> Any:
    return part.replay.add(state, rows._replace(obs=_newest(part, rows.obs, 2)), env_id)


def _newest(part: Frames, obs: Any, leading: int) -> Array:
    """Return the newest frame of observations; ``leading`` is the number of leading axes."""
    shape = getattr(obs, "shape", None)
    if shape is None:
        raise ValueError(f"frame_replay needs observations that are one array, not {type(obs).__name__}: use another replay")
    obs_shape = shape[leading:]
    if not -len(obs_shape) <= part.axis < len(obs_shape) or obs_shape[part.axis] % part.num_frames:
        raise ValueError(
            f"observations of shape {[*obs_shape]} do not hold {part.num_frames} frames along axis {part.axis}: change the axis "
            "or num_frames"
        )
    axis = leading + part.axis % len(obs_shape)
    size = obs_shape[part.axis] // part.num_frames
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

"""Random shifts of the images in drawn rows (DrQ, Yarats et al. 2021; RAD, Laskin et al. 2020)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.images import is_image, layout_of
from jaxrl.replay import Draw, Replay, Rows, bind
from jaxrl.spaces.entries import PRIVILEGED_KEY
from jaxrl.types import Array, Key, PyTree
from jaxrl.xla.fast_random import fold_in, randint


class Shifted(NamedTuple):
    """``Draw.extras``, [batch]: what the inner replay drew, and the shifts."""

    inner: PyTree
    shifts: Array
    """i32[batch, 2, 2]: of the drawn row's image and of the later ones, each down and to the right, in pixels."""


class Augmented(NamedTuple):
    """Static data, the first argument of this replay's functions."""

    replay: Replay
    space: spaces.Space
    pixels: int
    layout: str


def shift_replay(replay: Replay, observation_space: spaces.Space, pixels: int, layout: str = "auto") -> Replay:
    """Return a replay that shifts the images of the rows that another one draws.

    Each drawn row has a shift for itself, and another one for the observations after it, so that the current and the next image
    of a transition are shifted independently, as in DrQ. All images of an observation are shifted alike. What is stored does
    not change.

    Args:
      replay: draws single rows.
      observation_space: that of the rows, with an image.
      pixels: the largest shift in each direction. Edges are repeated.
      layout: "HWC", "CHW", or "auto": channels first if the first axis is shorter than the last.

    Raises:
      ValueError: the observations have no image.
    """
    if not any(image_axes(space) for space in _leaves(observation_space)):
        raise ValueError(
            f"augmentation=Shift() is for images, Boxes of shape (height, width, channels), and the observation space is "
            f"{observation_space}: leave it out"
        )
    parts = Augmented(replay, observation_space, pixels, layout)
    return bind(parts, (init, add, draw, take, update, mark_discontinuity), replay.prioritised)


def init(parts: Augmented, example: Rows) -> Any:
    return parts.replay.init(example)


def add(parts: Augmented, state: Any, rows: Rows, env_id: Array) -> Any:
    return parts.replay.add(state, rows, env_id)


def draw(parts: Augmented, state: Any, key: Key, batch_size: int) -> Draw:
    drawn = parts.replay.draw(state, key, batch_size)
    shifts = randint(fold_in(key, SHIFTS), (len(drawn.row), 2, 2), -parts.pixels, parts.pixels + 1)
    return drawn._replace(extras=Shifted(drawn.extras, shifts))


SHIFTS = 2**31 - 99
"""Random stream of the shifts, far from those of an update and of the inner replay."""


def take(parts: Augmented, state: Any, draw: Draw, offset: int | Array) -> Any:
    inner, shifts = draw.extras
    row = parts.replay.take(state, draw._replace(extras=inner), offset)
    later = jnp.broadcast_to(jnp.asarray(offset) > 0, draw.row.shape)
    chosen = jnp.where(later[:, None], shifts[:, 1], shifts[:, 0])
    return row._replace(obs=shifted(parts.space, row.obs, chosen, parts.layout))


def update(parts: Augmented, state: Any, draw: Draw, priorities: Array) -> Any:
    return parts.replay.update(state, draw._replace(extras=draw.extras.inner), priorities)


def mark_discontinuity(parts: Augmented, state: Any) -> Any:
    return parts.replay.mark_discontinuity(state)


# ----------------------------------------------------------------------------------------------------------------------- images


def shifted(space: spaces.Space, obs: PyTree, shift: Array, layout: str = "auto") -> PyTree:
    """Shift the images of observations [N, ...] by i32[N, 2] pixels, down and to the right; other entries are unchanged."""
    if isinstance(space, spaces.Dict):
        return {name: x if name == PRIVILEGED_KEY else shifted(space[name], x, shift, layout) for name, x in obs.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(shifted(part, x, shift, layout) for part, x in zip(space, obs, strict=True))
    axes = image_axes(space, layout)
    return shift_image(obs, shift, axes) if axes else obs


def image_axes(space: spaces.Space, layout: str = "auto") -> tuple[int, int] | None:
    """Return the axes of the height and the width of an image, or None for other spaces."""
    if not is_image(space):
        return None
    return (1, 2) if len(space.shape) == 3 and layout_of(space, layout) == "CHW" else (0, 1)


def shift_image(x: Array, shift: Array, axes: tuple[int, int]) -> Array:
    """Shift images [N, ...] by i32[N, 2] pixels along two axes of an image, where edges are repeated."""

    def one(x: Array, by: Array) -> Array:
        for axis, number in zip(axes, by, strict=True):
            size = x.shape[axis]
            x = jnp.take(x, jnp.clip(jnp.arange(size) - number, 0, size - 1), axis)
        return x

    return jax.vmap(one)(x, shift)


def _leaves(space: spaces.Space) -> list[spaces.Space]:
    if isinstance(space, spaces.Dict):
        return [leaf for name, part in space.items() if name != PRIVILEGED_KEY for leaf in _leaves(part)]
    return [leaf for part in space for leaf in _leaves(part)] if isinstance(space, spaces.Tuple) else [space]

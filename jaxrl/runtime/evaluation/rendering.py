"""Rendering of environments: by their render function, or from observations that are boards or images. No window is opened."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.validate import picture_problem
from jaxrl.types import Env, HostEnv

NIGHT, GRID = (13, 17, 23), (33, 38, 45)

SMALLEST_PHOTO = 32
"""Observations with fewer rows or columns are drawn as a board of cells."""

LARGE = 420
"""Smaller pictures are magnified by an integer, to at most this number of rows or columns."""


class Drawing(NamedTuple):
    """Function that draws an environment, and its speed."""

    draw: Callable[[Any, Any, Any], np.ndarray]
    """(scene, observation, action that led there or None) -> u8[height, width, 3]. The scene is the state of a pure environment,
    or the running host environments."""
    fps: float
    """Pictures per second in real time, or a suitable speed if the environment has no real time."""


def drawing(env: Env | HostEnv) -> Drawing:
    """Choose how to draw ``env``: by its render function, else boards as coloured cells, and images unchanged."""
    space = env.observation_space
    if isinstance(env, HostEnv) and env.open_render is not None:
        return Drawing(lambda envs, obs, action: _enlarged(env.name, envs.render()[0]), env.render_fps)
    if isinstance(env, Env) and (render := env.render) is not None:
        return Drawing(lambda state, obs, action: _enlarged(env.name, render(state, action, env.params)), env.render_fps)
    if isinstance(space, spaces.Box) and len(space.shape) in (2, 3):
        finite = space.high[np.isfinite(space.high)]
        brightest = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
        if sorted(space.shape)[-2] >= SMALLEST_PHOTO:
            return Drawing(lambda scene, obs, action: _enlarged(env.name, _photo(np.asarray(obs, float) / brightest)), 15)
        if min(space.shape[:2]) > 1:
            return Drawing(lambda scene, obs, action: _board(np.asarray(obs, float) / brightest), 10)
    kind = f"{type(space).__name__}{space.shape or ''}"
    raise ValueError(
        f"{env.name} cannot be drawn: its observations are {kind}, and it has no render. Supported are environments with render "
        "(gymnax's classic control, most of envpool, custom ones that define it), and those whose observations are boards "
        "(MinAtar, Catch, DeepSea) or images"
    )


def _enlarged(name: str, picture: Any) -> np.ndarray:
    if problem := picture_problem(picture):
        raise ValueError(f"{name} cannot be drawn: {problem}")
    pixels = np.asarray(picture)
    size = max(1, LARGE // max(pixels.shape[:2]))
    return pixels.repeat(size, axis=0).repeat(size, axis=1)


def _board(board: np.ndarray) -> np.ndarray:
    """Draw [rows, columns] or [rows, columns, channels]: a colour per channel, the last channel on top, darker below 1."""
    strength = np.clip(board if board.ndim == 3 else board[..., None], 0, 1)
    channels = strength.shape[-1]
    on_top = channels - 1 - np.argmax(strength[..., ::-1] > 0, axis=-1)
    shown = np.take_along_axis(strength, on_top[..., None], axis=-1)
    # Hues that are a golden ratio apart stay distinct for any number of channels.
    hues = [colorsys.hsv_to_rgb((0.58 + 0.618034 * i) % 1, 0.62, 1.0) for i in range(channels)]
    colours = 255 * np.array(hues)[on_top]
    cells = np.where(shown > 0, NIGHT + (0.25 + 0.75 * shown) * (colours - NIGHT), NIGHT)
    pixels = _enlarged("", cells.round().astype(np.uint8))
    if (size := len(pixels) // len(cells)) >= 8:
        pixels[::size], pixels[:, ::size] = GRID, GRID
    return pixels


def _photo(image: np.ndarray) -> np.ndarray:
    """Draw [rows, columns], or with channels first or last: the newest frame of a stack, in colour if 3 divides the channels."""
    if image.ndim == 2:
        image = image[..., None]
    elif image.shape[0] < image.shape[2]:
        image = np.moveaxis(image, 0, -1)
    newest = image[..., -3:] if image.shape[2] % 3 == 0 else image[..., -1:]
    return np.broadcast_to((255 * newest).clip(0, 255).round().astype(np.uint8), (*image.shape[:2], 3))

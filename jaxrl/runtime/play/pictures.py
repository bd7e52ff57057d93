"""Pictures of environments, drawn from observations with Pillow: nothing opens a window or needs a display."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from jaxrl.envs.backend import parse_id
from jaxrl.types import Env, HostEnv

if TYPE_CHECKING:
    from PIL.Image import Image

WIDTH, SMOOTH = 480, 3
"""Pixels of a picture; each is the mean of SMOOTH² that are drawn."""

PAPER, INK, GROUND, FAINT = "#ffffff", "#24292f", "#57606a", "#d8dee4"
BODY, LIMB, JOINT, FORCE, GOAL = "#1f6feb", "#bf8040", "#24292f", "#cf222e", "#1a7f37"
NIGHT, GRID = (13, 17, 23), (33, 38, 45)

SMALLEST_PHOTO = 32
"""Floats on fewer rows or columns are a board of cells."""


WIDEST = 12.0
"""Metres of track to either side that are shown at most."""


class Drawing(NamedTuple):
    """How an environment is drawn."""

    draw: Callable[[Any, Any], Image]
    """(observation, the action that led to it or None) -> picture."""
    fps: float
    """Pictures per second in real time, or at a pleasant speed where there is no such thing."""


def drawing(env: Env | HostEnv) -> Drawing:
    """How to draw ``env``: classic control as figures, boards as coloured cells, images as they are.

    Raises:
      ValueError: there is no way.
    """
    name, space = parse_id(env.name).name, env.observation_space
    if isinstance(space, spaces.Box):
        if name in FIGURES and space.shape == FIGURES[name].shape:
            figure = FIGURES[name]
            return Drawing(partial(figure.draw, _Params(getattr(env, "params", None))), figure.fps)
        if _is_photo(space):
            options = getattr(env, "options", {})
            return Drawing(partial(_draw_photo, _num_colours(space.shape, options), _brightest(space)), 15)
        if len(space.shape) in (2, 3) and min(space.shape[:2]) > 1:
            return Drawing(partial(_draw_cells, _brightest(space)), 10)
    kind = f"{type(space).__name__}{space.shape or ''}"
    raise ValueError(
        f"{env.name} cannot be drawn: its observations are {kind}. What can be: {', '.join(FIGURES)} (of gymnax or envpool), "
        "and environments whose observations are boards (MinAtar, Catch, DeepSea) or images (Atari, Procgen)"
    )


# ---------------------------------------------------------------------------------------------------------------------- canvas


class Canvas:
    """A picture in the environment's own units, y upwards."""

    def __init__(self, left: float, right: float, bottom: float, top: float) -> None:
        from PIL import Image, ImageDraw

        self._left, self._top, self._scale = left, top, WIDTH * SMOOTH / (right - left)
        height = round(WIDTH * (top - bottom) / (right - left))
        self._image = Image.new("RGB", (WIDTH * SMOOTH, height * SMOOTH), PAPER)
        self._pen = ImageDraw.Draw(self._image)

    def picture(self) -> Image:
        return self._image.reduce(SMOOTH)

    def line(self, points: Iterable[tuple[float, float]], thickness: float, colour: str) -> None:
        """Through the points, with round ends and corners."""
        points = list(points)
        width = max(1, round(thickness * self._scale))
        self._pen.line([self._at(*point) for point in points], fill=colour, width=width, joint="curve")
        for end in (points[0], points[-1]):
            self.disc(*end, thickness / 2, colour)

    def polygon(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        self._pen.polygon([self._at(*point) for point in points], fill=colour)

    def disc(self, x: float, y: float, radius: float, colour: str) -> None:
        (x, y), radius = self._at(x, y), radius * self._scale
        self._pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def arrow(self, points: Iterable[tuple[float, float]], thickness: float, colour: str) -> None:
        """A line that ends in a head; nothing if it is shorter than that head."""
        path = np.array(list(points), float)
        length = np.linalg.norm(np.diff(path, axis=0), axis=1).sum()
        along = path[-1] - path[-2]
        if length < thickness or not along.any():
            return
        along *= 2 * thickness / np.linalg.norm(along)
        across = np.array([-along[1], along[0]])
        self.line([(x, y) for x, y in path], thickness, colour)
        self.polygon([tuple(path[-1] + part) for part in (1.5 * along, across, -across)], colour)

    def turn(self, x: float, y: float, radius: float, angle: float, colour: str) -> None:
        """An arrow around (x, y), by an angle from the right side upwards: counterclockwise if positive."""
        steps = np.linspace(0, angle, 12)
        self.arrow(zip(x + radius * np.cos(steps), y + radius * np.sin(steps), strict=True), radius / 9, colour)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (x - self._left) * self._scale, (self._top - y) * self._scale


# ------------------------------------------------------------------------------------------------------------- classic control


class _Params:
    """Parameters as floats, where the environment has them."""

    def __init__(self, params: Any) -> None:
        self._params = params

    def __call__(self, name: str, default: float) -> float:
        return float(getattr(self._params, name, default))


def draw_cart_pole(params: _Params, obs: np.ndarray, action: Any = None) -> Image:
    """obs: position, velocity, angle, angular velocity; the angle is 0 upright, and positive to the right."""
    x, theta = float(obs[0]), float(obs[2])
    limit, pole = min(params("x_threshold", 2.4), WIDEST), 2 * params("length", 0.5)  # gymnax's length is half the pole's
    canvas = Canvas(-limit - 0.6, limit + 0.6, -0.75, pole + 0.65)
    canvas.line([(-limit - 0.6, 0), (limit + 0.6, 0)], 0.02, GROUND)
    for end in (-limit, limit):
        canvas.line([(end, -0.12), (end, 0.12)], 0.03, FORCE)
    canvas.polygon([(x - 0.28, -0.15), (x + 0.28, -0.15), (x + 0.28, 0.15), (x - 0.28, 0.15)], BODY)
    canvas.line([(x, 0.12), (x + pole * math.sin(theta), 0.12 + pole * math.cos(theta))], 0.09, LIMB)
    canvas.disc(x, 0.12, 0.035, JOINT)
    if action is not None:
        way = 1 if action == 1 else -1
        canvas.arrow([(x, -0.4), (x + 0.3 * way, -0.4)], 0.06, FORCE)
    return canvas.picture()


def draw_pendulum(params: _Params, obs: np.ndarray, action: Any = None) -> Image:
    """obs: cosine and sine of the angle, angular velocity; the angle is 0 upright, and positive counterclockwise."""
    cos, sin, length, strongest = float(obs[0]), float(obs[1]), params("l", 1.0), params("max_torque", 2.0)
    side = 1.3 * length
    canvas = Canvas(-1.6 * side, 1.6 * side, -side, side)
    canvas.line([(0, 1.14 * length), (0, 1.24 * length)], 0.02 * length, GOAL)
    canvas.line([(0, 0), (-length * sin, length * cos)], 0.16 * length, LIMB)
    if action is not None:
        torque = np.clip(float(np.ravel(action)[0]) / strongest, -1, 1)
        canvas.turn(0, 0, 0.4 * length, 2.5 * torque, FORCE)
    canvas.disc(0, 0, 0.05 * length, JOINT)
    return canvas.picture()


def draw_acrobot(params: _Params, obs: np.ndarray, action: Any = None) -> Image:
    """obs: cosine and sine of both angles, velocities; the first is 0 hanging down, the second 0 straight on."""
    upper, lower = params("link_length_1", 1.0), params("link_length_2", 1.0)
    first = math.atan2(obs[1], obs[0])
    both = first + math.atan2(obs[3], obs[2])
    elbow = (upper * math.sin(first), -upper * math.cos(first))
    hand = (elbow[0] + lower * math.sin(both), elbow[1] - lower * math.cos(both))
    side = 1.1 * (upper + lower)
    canvas = Canvas(-1.3 * side, 1.3 * side, -side, side)
    canvas.line([(-1.3 * side, 1.0), (1.3 * side, 1.0)], 0.02, GOAL)
    canvas.line([(0, 0), elbow], 0.14, LIMB)
    canvas.line([elbow, hand], 0.14, BODY)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(*joint, 0.05, JOINT)
    if action is not None:
        canvas.turn(*elbow, 0.3, 2.0 * (int(action) - 1), FORCE)
    return canvas.picture()


def draw_mountain_car(params: _Params, obs: np.ndarray, action: Any = None, *, default_goal: float = 0.5) -> Image:
    """obs: position, velocity. A Discrete action pushes by itself − 1, a continuous one by itself."""

    def height(x: Any) -> Any:
        return 0.45 * np.sin(3 * x) + 0.55

    x, goal = float(obs[0]), params("goal_position", default_goal)
    left, right = params("min_position", -1.2), params("max_position", 0.6)
    canvas = Canvas(left, right, -0.02, 1.25)
    hill = np.linspace(left, right, 121)
    canvas.polygon([(left, -0.1), *zip(hill, height(hill), strict=True), (right, -0.1)], FAINT)
    canvas.line(zip(hill, height(hill), strict=True), 0.008, GROUND)
    top = height(goal) + 0.18
    canvas.line([(goal, height(goal)), (goal, top)], 0.008, GROUND)
    canvas.polygon([(goal, top), (goal - 0.09, top - 0.035), (goal, top - 0.07)], GOAL)

    slope = math.atan(1.35 * math.cos(3 * x))
    along, up = np.array([math.cos(slope), math.sin(slope)]), np.array([-math.sin(slope), math.cos(slope)])
    at = np.array([x, height(x)])
    corners = ((-0.07, 0.02), (0.07, 0.02), (0.07, 0.055), (0.035, 0.06), (0.02, 0.085), (-0.045, 0.085), (-0.07, 0.06))
    canvas.polygon([tuple(at + a * along + b * up) for a, b in corners], BODY)
    for wheel in (-0.04, 0.04):
        x, y = at + wheel * along + 0.022 * up
        canvas.disc(x, y, 0.022, JOINT)
    if action is not None:
        push = int(action) - 1 if np.ndim(action) == 0 else float(np.clip(action[0], -1, 1))
        begin = at + 0.13 * up
        canvas.arrow([tuple(begin), tuple(begin + 0.1 * push * along)], 0.015, FORCE)
    return canvas.picture()


class Figure(NamedTuple):
    """An environment that has a drawing of its own, by the name that all backends know it by."""

    draw: Callable[..., Image]
    shape: tuple[int, ...]
    fps: float


FIGURES = {
    "CartPole-v1": Figure(draw_cart_pole, (4,), 50),
    "Pendulum-v1": Figure(draw_pendulum, (3,), 20),
    "Acrobot-v1": Figure(draw_acrobot, (6,), 15),
    "MountainCar-v0": Figure(draw_mountain_car, (2,), 30),
    "MountainCarContinuous-v0": Figure(partial(draw_mountain_car, default_goal=0.45), (2,), 30),
}


# ----------------------------------------------------------------------------------------------------------- boards and photos


def _draw_cells(brightest: float, obs: np.ndarray, action: Any = None) -> Image:
    """[rows, columns] or [rows, columns, channels]: one colour per channel, the last one on top, darker below ``brightest``."""
    board = np.asarray(obs, float)
    strength = np.clip((board if board.ndim == 3 else board[..., None]) / brightest, 0, 1)
    channels = strength.shape[-1]
    on_top = channels - 1 - np.argmax(strength[..., ::-1] > 0, axis=-1)
    shown = np.take_along_axis(strength, on_top[..., None], axis=-1)
    # Hues a golden ratio apart stay distinct, however many there are.
    hues = [colorsys.hsv_to_rgb((0.58 + 0.618034 * i) % 1, 0.62, 1.0) for i in range(channels)]
    colours = 255 * np.array(hues)[on_top]
    cells = np.where(shown > 0, NIGHT + (0.25 + 0.75 * shown) * (colours - NIGHT), NIGHT)
    size = max(1, 360 // max(cells.shape[:2]))
    pixels = cells.repeat(size, axis=0).repeat(size, axis=1)
    if size >= 8:
        pixels[::size], pixels[:, ::size] = GRID, GRID
    return _image(pixels)


def _draw_photo(num_colours: int, brightest: float, obs: np.ndarray, action: Any = None) -> Image:
    """[rows, columns], or with channels in front or behind: the newest image of a stack."""
    pixels = np.asarray(obs, float) * (255 / brightest)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    elif pixels.shape[0] < pixels.shape[2]:
        pixels = np.moveaxis(pixels, 0, -1)
    newest = np.broadcast_to(pixels[..., -num_colours:], (*pixels.shape[:2], 3)).clip(0, 255)
    size = max(1, 360 // max(newest.shape[:2]))
    return _image(newest.repeat(size, axis=0).repeat(size, axis=1))


def _image(pixels: np.ndarray) -> Image:
    from PIL import Image

    return Image.fromarray(pixels.round().astype(np.uint8))


def _is_photo(space: spaces.Box) -> bool:
    return len(space.shape) in (2, 3) and sorted(space.shape)[-2] >= SMALLEST_PHOTO


def _num_colours(shape: tuple[int, ...], options: Mapping[str, Any]) -> int:
    """3 or 1. Stacks of grey images need no telling apart from colours but where their number divides by 3."""
    channels = 1 if len(shape) == 2 else min(shape[0], shape[2])
    grey = options.get("gray_scale", channels % 3 != 0)
    return 1 if grey else 3


def _brightest(space: spaces.Box) -> float:
    finite = space.high[np.isfinite(space.high)]
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0

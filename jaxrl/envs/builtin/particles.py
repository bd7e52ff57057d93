"""Physics of the multi-agent particle environments (Mordatch & Abbeel 2018; Lowe et al. 2017): points with inertia in the plane.

Constants and order of updates are those of PettingZoo's MPE, so that results can be compared: a step first moves the points by
their velocities, and then changes the velocities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.rendering.canvas import FAINT, JOINT, Canvas
from jaxrl.types import Array, Key

STEPS = 25
"""Steps per episode; the limit truncates."""
TIME_STEP, DAMPING, ACCELERATION = 0.1, 0.25, 5.0
CONTACT_FORCE, CONTACT_MARGIN = 100.0, 0.001

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Directions of the five actions: none, left, right, down, up."""
COLOURS = ("#cf222e", "#1a7f37", "#1f6feb")
"""Colours of three landmarks in pictures."""


def uniform_positions(key: Key, number: int) -> Array:
    """Draw positions in [−1, 1]², f32[number, 2]."""
    return jax.random.uniform(key, (number, 2), minval=-1.0, maxval=1.0)


def distance(a: Array, b: Array) -> Array:
    """Return the distance of points [..., 2]. Its gradient at 0 is 0, not NaN."""
    square = jnp.sum((a - b) ** 2, -1)
    apart = square > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)


def contact_forces(position: Array, radius: float) -> Array:
    """Return the sum of the forces f32[A, 2] by which overlapping discs at f32[A, 2] push each other apart.

    Two discs push with force · margin · log(1 + exp((2 · radius − distance) / margin)) along the line between their centres;
    discs with the same centre do not push.
    """
    apart = distance(position[:, None], position)
    depth = CONTACT_MARGIN * jax.nn.softplus((2 * radius - apart) / CONTACT_MARGIN)
    push = CONTACT_FORCE * depth / jnp.where(apart > 0, apart, 1.0)
    return jnp.sum(push[..., None] * (position[:, None] - position), 1)  # a disc and itself differ by 0


def thrust(action: Array) -> Array:
    """Return the force f32[..., 2] of a discrete action i32[...] on a point of mass 1."""
    return ACCELERATION * jnp.array(MOVES, jnp.float32)[action]


def move(position: Array, velocity: Array, force: Array) -> tuple[Array, Array]:
    """Return position and velocity f32[..., 2] after a step with a force on points of mass 1."""
    return position + TIME_STEP * velocity, (1 - DAMPING) * velocity + TIME_STEP * force


# -------------------------------------------------------------------------------------------------------------------- pictures


def scene(*groups: Any) -> tuple[Canvas, float]:
    """Return a canvas of [−reach, reach]², with a reach of 1.2, or more where points [..., 2] are farther away, and the reach."""
    reach = max(1.2, *(0.2 + float(np.abs(np.asarray(points)).max()) for points in groups))
    return Canvas(-reach, reach, -reach, reach), reach


def draw_landmarks(canvas: Canvas, landmarks: Any, colours: Sequence[str], radius: float) -> None:
    for (x, y), colour in zip(np.asarray(landmarks).tolist(), colours, strict=True):
        canvas.disc(x, y, radius, colour)


def draw_agent(canvas: Canvas, position: Any, radius: float, colour: str, action: int | None) -> None:
    """Draw an agent, and an arrow for its move."""
    (x, y), (right, up) = np.asarray(position).tolist(), MOVES[action or 0]
    canvas.disc(x, y, radius, colour)
    canvas.arrow([(x, y), (x + 2 * radius * right, y + 2 * radius * up)], 0.03, JOINT)


def draw_words(canvas: Canvas, reach: float, said: Sequence[tuple[int, str]], count: int) -> None:
    """Draw a row of ``count`` discs at the top for each (word, colour): a filled one for the word, if any, and empty ones."""
    for row, (word, colour) in enumerate(said):
        for i in range(count):
            canvas.disc(reach * (0.1 * i - 0.9), reach * (0.9 - 0.1 * row), 0.04 * reach, colour if i == word else FAINT)

"""Reaching points in the plane around a hazard: an environment with a cost beside the reward."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.rendering.plane import picture_of_point
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

STEPS = 100
"""Steps per episode. Moving from a goal to the next takes about 15."""
CIRCLE, REACHED = 0.8, 0.1
"""Radius of the circle of goals, and the distance at which a goal is reached."""
PUSH, DRAG = 0.02, 0.25
"""Velocity that an action of 1 adds, and the share of the velocity lost per step."""


class HazardsParams(NamedTuple):
    radius: Any
    """Radius of the hazard in the middle."""


class HazardsState(NamedTuple):
    position: Array
    """f32[2], within [−1, 1]²"""
    velocity: Array
    """f32[2], per step"""
    goal: Array
    """f32[2]"""


def hazards(radius: float = 0.4) -> Env:
    """``jaxrl:Hazards``: push a point, by actions f32[2] in [−1, 1]², to one goal after another, around a hazard.

    Start and goals are drawn uniformly from a circle of radius 0.8 around the middle. A goal is reached within 0.1, and the next
    one appears. The reward of a step is the distance by which the goal came nearer, and 1 more if it was reached. The cost,
    ``info["cost"]``, is 1 for a step that ends within ``radius`` of the middle, where the shortest ways between goals lead, and 0
    otherwise. Episodes are truncated after 100 steps.

    Observations are f32[6]: position, velocity, and the goal relative to the position. ``radius`` is data (``HazardsParams``).
    """
    if not 0 <= radius < CIRCLE:
        raise ValueError(f"jaxrl:Hazards: option radius={radius!r} must be at least 0, and below {CIRCLE}, the circle of goals")

    def observe(state: HazardsState) -> Array:
        return jnp.concatenate([state.position, state.velocity, state.goal - state.position])

    def on_circle(key: Key) -> Array:
        angle = jax.random.uniform(key, maxval=2 * jnp.pi)
        return CIRCLE * jnp.stack([jnp.cos(angle), jnp.sin(angle)])

    def reset(key: Key, params: HazardsParams) -> tuple[HazardsState, PyTree]:
        position, goal = map(on_circle, jax.random.split(key))
        state = HazardsState(position, jnp.zeros(2), goal)
        return state, observe(state)

    def step(key: Key, state: HazardsState, action: Array, params: HazardsParams) -> tuple[HazardsState, TimeStep]:
        velocity = (1.0 - DRAG) * state.velocity + PUSH * jnp.clip(action, -1.0, 1.0)
        position = jnp.clip(state.position + velocity, -1.0, 1.0)
        velocity = jnp.where(jnp.abs(position) < 1.0, velocity, 0.0)  # walls stop the point
        before, after = (jnp.linalg.norm(state.goal - x) for x in (state.position, position))
        reached = after <= REACHED
        state = HazardsState(position, velocity, jnp.where(reached, on_circle(key), state.goal))
        cost = (jnp.linalg.norm(position) < params.radius).astype(jnp.float32)
        never = jnp.zeros((), bool)
        return state, TimeStep(observe(state), before - after + reached, never, never, {"cost": cost})

    def render(state: HazardsState, action: Any, params: HazardsParams) -> np.ndarray:
        return picture_of_point(state.position, state.goal, REACHED, action, hazard=float(params.radius))

    wide = np.array([1, 1, np.inf, np.inf, 2, 2], np.float32)
    return Env(
        reset,
        step,
        spaces.Box(-wide, wide, dtype=np.float32),
        spaces.Box(-1.0, 1.0, (2,), np.float32),
        HazardsParams(np.float32(radius)),
        max_episode_steps=STEPS,
        render=render,
        render_fps=20,
    )

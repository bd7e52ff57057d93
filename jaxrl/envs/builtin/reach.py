"""Reaching a point in the plane: a goal environment with continuous actions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.rendering.plane import picture_of_point
from jaxrl.spaces.goals import ACHIEVED, DESIRED, OBSERVATION
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

STEPS = 50
"""Steps per episode. Moving from corner to corner takes about 35."""


class ReachParams(NamedTuple):
    push: Any
    """Velocity that an action of 1 adds."""
    drag: Any
    """Share of the velocity lost per step."""


class ReachState(NamedTuple):
    position: Array
    """f32[2], within [−1, 1]²"""
    velocity: Array
    """f32[2], per step"""
    goal: Array
    """f32[2]"""


def reach(radius: float = 0.05, push: float = 0.01, drag: float = 0.1) -> Env:
    """``jaxrl:Reach``: push a point with inertia, by actions f32[2] in [−1, 1]², to within ``radius`` of the goal.

    Walls stop the point. It starts at rest; start and goal are drawn uniformly. The reward is 1 when the goal is reached, which
    ends the episode, and 0 otherwise, so the return is 1 for a success and 0 for a failure.

    Observations are a Dict: ``observation`` holds position and velocity, f32[4], ``achieved_goal`` the position and
    ``desired_goal`` the goal, f32[2]. ``radius`` is static, as ``compute_reward`` depends on it; the other arguments are data
    (``ReachParams``). ``radius`` and ``push`` are finite and at least 0, ``drag`` is within [0, 1].
    """
    for name, value in (("radius", radius), ("push", push)):
        if not 0 <= value <= float(np.finfo(np.float32).max):
            raise ValueError(f"jaxrl:Reach: option {name}={value!r} must be at least 0, and finite")
    if not 0 <= drag <= 1:
        raise ValueError(f"jaxrl:Reach: option drag={drag!r} must be within [0, 1]")

    def observe(state: ReachState) -> PyTree:
        return {OBSERVATION: jnp.concatenate([state.position, state.velocity]), ACHIEVED: state.position, DESIRED: state.goal}

    def compute_reward(achieved: Array, desired: Array) -> tuple[Array, Array]:
        reached = jnp.sum((achieved - desired) ** 2) <= radius**2
        return reached.astype(jnp.float32), reached

    def reset(key: Key, params: ReachParams) -> tuple[ReachState, PyTree]:
        position, goal = jax.random.uniform(key, (2, 2), minval=-1.0, maxval=1.0)
        state = ReachState(position, jnp.zeros(2), goal)
        return state, observe(state)

    def step(key: Key, state: ReachState, action: Array, params: ReachParams) -> tuple[ReachState, TimeStep]:
        velocity = (1.0 - params.drag) * state.velocity + params.push * jnp.clip(action, -1.0, 1.0)
        position = jnp.clip(state.position + velocity, -1.0, 1.0)
        velocity = jnp.where(jnp.abs(position) < 1.0, velocity, 0.0)  # walls stop the point
        state = ReachState(position, velocity, state.goal)
        reward, terminated = compute_reward(position, state.goal)
        return state, TimeStep(observe(state), reward, terminated, jnp.zeros((), bool))

    def render(state: ReachState, action: Any, params: ReachParams) -> np.ndarray:
        return picture_of_point(state.position, state.goal, radius, action)

    square = spaces.Box(-1.0, 1.0, (2,), np.float32)
    motion = spaces.Box(np.array([-1, -1, -np.inf, -np.inf], np.float32), np.array([1, 1, np.inf, np.inf], np.float32))
    return Env(
        reset,
        step,
        spaces.Dict({OBSERVATION: motion, ACHIEVED: square, DESIRED: square}),
        spaces.Box(-1.0, 1.0, (2,), np.float32),
        ReachParams(np.float32(push), np.float32(drag)),
        max_episode_steps=STEPS,
        render=render,
        render_fps=20,
        compute_reward=compute_reward,
    )

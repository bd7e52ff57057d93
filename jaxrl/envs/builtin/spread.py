"""Spread, a multi-agent particle environment (Lowe et al. 2017): agents cover landmarks without touching each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.builtin import particles
from jaxrl.envs.rendering.canvas import BODY, GROUND
from jaxrl.envs.teams import Team, pad
from jaxrl.types import Array, Env, Key, TimeStep

RADIUS, RADIUS_OF_LANDMARKS = 0.15, 0.05


class SpreadParams(NamedTuple):
    local_ratio: Any
    """Share of an agent's collisions in its reward; the rest is the distance of the landmarks."""


class SpreadState(NamedTuple):
    position: Array
    """f32[A, 2]"""
    velocity: Array
    """f32[A, 2]"""
    landmarks: Array
    """f32[A, 2]"""


def spread(agents: int = 3, local_ratio: float = 0.5) -> Env:
    """``jaxrl:Spread?agents=3&local_ratio=0.5``: cover as many landmarks as there are agents, without collisions.

    As PettingZoo's ``simple_spread``: the reward of an agent is (1 − local_ratio) · (−Σ over landmarks of the distance of the
    nearest agent) + local_ratio · (−the number of other agents that it overlaps). Agents and landmarks start at random in
    [−1, 1]², at rest. Episodes are truncated after 25 steps.

    Observations are f32[6·agents]: velocity (2), position (2), positions of the landmarks and of the other agents relative to it
    (2 each), and zeros for the messages of the other agents (2 each), which are silent here. Actions are Discrete(5): none, left,
    right, down, up.

    ``local_ratio`` is data (``SpreadParams``), within [0, 1].
    """
    if not 0 <= local_ratio <= 1:
        raise ValueError(f"jaxrl:Spread: option local_ratio={local_ratio!r} must be within [0, 1]")
    others = np.array([[j for j in range(agents) if j != i] for i in range(agents)], np.int32)

    def observe(state: SpreadState) -> tuple[Array, ...]:
        position = state.position
        parts = [
            (state.landmarks - position[:, None]).reshape(agents, -1),
            (position[others] - position[:, None]).reshape(agents, -1),
            jnp.zeros((agents, 2 * (agents - 1))),
        ]
        return tuple(jnp.concatenate([state.velocity, position, *parts], -1))

    def rewards(state: SpreadState, params: SpreadParams) -> Array:
        apart = particles.distance(state.position[:, None], state.position)
        collisions = (apart < 2 * RADIUS).sum(1) - 1.0  # an agent does not collide with itself
        uncovered = particles.distance(state.position[:, None], state.landmarks).min(0).sum()
        return -(1 - params.local_ratio) * uncovered - params.local_ratio * collisions

    def reset(key: Key, params: SpreadParams) -> tuple[SpreadState, tuple[Array, ...]]:
        position, landmarks = particles.uniform_positions(key, 2 * agents).reshape(2, agents, 2)
        state = SpreadState(position, jnp.zeros((agents, 2)), landmarks)
        return state, observe(state)

    def step(key: Key, state: SpreadState, actions: tuple[Array, ...], params: SpreadParams) -> tuple[SpreadState, TimeStep]:
        force = particles.thrust(jnp.stack(actions)) + particles.contact_forces(state.position, RADIUS)
        state = SpreadState(*particles.move(state.position, state.velocity, force), state.landmarks)
        never = jnp.zeros((), bool)
        return state, TimeStep(observe(state), rewards(state, params), never, never)

    plane = spaces.Box(-np.inf, np.inf, (6 * agents,), np.float32)
    moves: tuple[spaces.Space, ...] = (spaces.Discrete(len(particles.MOVES)),) * agents
    params = SpreadParams(np.float32(local_ratio))
    team = Team(reset, step, (plane,) * agents, moves, params, "Spread", particles.STEPS, render, 10)
    return pad(team, agent_id=False)


def render(state: SpreadState, actions: tuple[Any, ...] | None, params: SpreadParams) -> np.ndarray:
    """Draw landmarks in grey and agents with their moves."""
    canvas, _ = particles.scene(state.position, state.landmarks)
    for i, position in enumerate(state.position):
        particles.draw_agent(canvas, position, RADIUS, BODY, None if actions is None else int(actions[i]))
    particles.draw_landmarks(canvas, state.landmarks, [GROUND] * len(state.landmarks), RADIUS_OF_LANDMARKS)
    return canvas.picture()

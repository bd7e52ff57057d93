"""Reference, a multi-agent particle environment (Lowe et al. 2017): each of two agents knows where the other has to go."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.builtin import particles
from jaxrl.envs.rendering.canvas import JOINT
from jaxrl.envs.teams import Team, pad
from jaxrl.types import Array, Env, Key, TimeStep

LANDMARKS, WORDS, DIRECTIONS = 3, 10, len(particles.MOVES)
BRIGHT, DARK = 0.75, 0.25
"""Parts of a landmark's colour: each landmark is bright in another one."""
RADIUS = 0.05


class ReferenceParams(NamedTuple):
    local_ratio: Any
    """Share of an agent's own distance in its reward; the rest is the mean of both."""


class ReferenceState(NamedTuple):
    position: Array
    """f32[2, 2]"""
    velocity: Array
    """f32[2, 2]"""
    landmarks: Array
    """f32[3, 2]"""
    goal: Array
    """i32[2]: landmark that the other agent has to reach, which this agent sees"""
    word: Array
    """i32[2]: the last word of each agent; −1 at the start"""


def reference(local_ratio: float = 0.5) -> Env:
    """``jaxrl:Reference?local_ratio=0.5``: move to a landmark that only the other agent knows, and say where it has to go.

    As PettingZoo's ``simple_reference``: with d_i the distance between the *other* agent and the landmark that agent i sees as
    goal, the reward of agent i is −local_ratio · d_i − (1 − local_ratio) · (d_0 + d_1)/2. Agents and landmarks start at random in
    [−1, 1]², at rest. Episodes are truncated after 25 steps.

    Observations are f32[21]: velocity (2), positions of the landmarks relative to the agent (3 × 2), the colour of the goal (3)
    and the last word of the other agent, one-hot (10; zeros at the start). Actions are Discrete(50), direction + 5 · word, with 5
    directions (none, left, right, down, up) and 10 words.

    ``local_ratio`` is data (``ReferenceParams``), within [0, 1].
    """
    if not 0 <= local_ratio <= 1:
        raise ValueError(f"jaxrl:Reference: option local_ratio={local_ratio!r} must be within [0, 1]")

    def observe(state: ReferenceState) -> tuple[Array, ...]:
        to_landmarks = (state.landmarks - state.position[:, None]).reshape(2, -1)
        colour = jnp.where(jnp.arange(LANDMARKS) == state.goal[:, None], BRIGHT, DARK)
        heard = jax.nn.one_hot(state.word[::-1], WORDS)
        return tuple(jnp.concatenate([state.velocity, to_landmarks, colour, heard], -1))

    def reset(key: Key, params: ReferenceParams) -> tuple[ReferenceState, tuple[Array, ...]]:
        goal_key, key = jax.random.split(key)
        points, goal = particles.uniform_positions(key, 2 + LANDMARKS), jax.random.randint(goal_key, (2,), 0, LANDMARKS)
        state = ReferenceState(points[:2], jnp.zeros((2, 2)), points[2:], goal, jnp.full(2, -1, jnp.int32))
        return state, observe(state)

    def step(key: Key, state: ReferenceState, actions: tuple[Array, ...], params: ReferenceParams) -> tuple[Any, TimeStep]:
        word, direction = jnp.divmod(jnp.stack(actions).astype(jnp.int32), DIRECTIONS)
        position, velocity = particles.move(state.position, state.velocity, particles.thrust(direction))
        state = state._replace(position=position, velocity=velocity, word=word)
        away = particles.distance(position[::-1], state.landmarks[state.goal])
        reward = -params.local_ratio * away - (1 - params.local_ratio) * away.mean()
        never = jnp.zeros((), bool)
        return state, TimeStep(observe(state), reward, never, never)

    plane = spaces.Box(-np.inf, np.inf, (21,), np.float32)
    actions: tuple[spaces.Space, ...] = (spaces.Discrete(DIRECTIONS * WORDS),) * 2
    params = ReferenceParams(np.float32(local_ratio))
    team = Team(reset, step, (plane,) * 2, actions, params, "Reference", particles.STEPS, render, 10)
    return pad(team, agent_id=False)


def render(state: ReferenceState, actions: tuple[Any, ...] | None, params: ReferenceParams) -> np.ndarray:
    """Draw landmarks, agents with their moves and a core in the colour of their goal, and at the top the last word of each agent,
    in the colour of the landmark that it should name."""
    canvas, reach = particles.scene(state.position, state.landmarks)
    goals = [particles.COLOURS[i] for i in np.asarray(state.goal)]
    particles.draw_landmarks(canvas, state.landmarks, particles.COLOURS, RADIUS)
    for i, position in enumerate(state.position):
        particles.draw_agent(canvas, position, 1.5 * RADIUS, JOINT, None if actions is None else int(actions[i]) % DIRECTIONS)
    particles.draw_landmarks(canvas, state.position, goals[::-1], 0.75 * RADIUS)
    particles.draw_words(canvas, reach, list(zip(np.asarray(state.word).tolist(), goals, strict=True)), WORDS)
    return canvas.picture()

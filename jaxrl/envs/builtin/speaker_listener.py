"""Speaker and listener, a multi-agent particle environment (Lowe et al. 2017): one knows the goal, the other can go there."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.builtin import particles
from jaxrl.envs.rendering.canvas import JOINT
from jaxrl.envs.teams import Team, pad
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

WORDS = LANDMARKS = 3
BRIGHT, DARK = 0.65, 0.15
"""Parts of a landmark's colour: each landmark is bright in another one."""
RADIUS, RADIUS_OF_LANDMARKS = 0.075, 0.04


class SpeakerListenerState(NamedTuple):
    position: Array
    """f32[2], of the listener, as is the velocity"""
    velocity: Array
    """f32[2]"""
    landmarks: Array
    """f32[3, 2]"""
    goal: Array
    """i32[]: landmark"""
    word: Array
    """i32[]: the last word of the speaker; −1 at the start"""


def speaker_listener() -> Env:
    """``jaxrl:SpeakerListener``: say which of three landmarks is the goal, and go there.

    As PettingZoo's ``simple_speaker_listener``: agent 0 sees the goal, and speaks; agent 1 hears, and moves. Both get the
    negative squared distance of the listener from the goal. Listener and landmarks start at random in [−1, 1]², at rest. Episodes
    are truncated after 25 steps.

    The speaker observes the colour of the goal, f32[3], and says one of three words, Discrete(3). The listener observes, f32[11],
    its velocity (2), the positions of the landmarks relative to it (3 × 2) and the last word, one-hot (3; zeros at the start); it
    moves by Discrete(5): none, left, right, down, up. ``jaxrl.agents.pad`` makes their spaces equal: observations are a Dict of
    ``observation``, f32[11], and ``action_mask``, i8[5]. The wrapper ``agent_id`` tells agents with shared parameters apart.
    """

    def observe(state: SpeakerListenerState) -> tuple[Array, Array]:
        colour = jnp.where(jnp.arange(LANDMARKS) == state.goal, BRIGHT, DARK).astype(jnp.float32)
        word = jax.nn.one_hot(state.word, WORDS)
        return colour, jnp.concatenate([state.velocity, (state.landmarks - state.position).ravel(), word])

    def reset(key: Key, params: PyTree) -> tuple[SpeakerListenerState, tuple[Array, Array]]:
        goal_key, key = jax.random.split(key)
        points, goal = particles.uniform_positions(key, 1 + LANDMARKS), jax.random.randint(goal_key, (), 0, LANDMARKS)
        state = SpeakerListenerState(points[0], jnp.zeros(2), points[1:], goal, jnp.full((), -1, jnp.int32))
        return state, observe(state)

    def step(key: Key, state: SpeakerListenerState, actions: tuple[Array, ...], params: PyTree) -> tuple[Any, TimeStep]:
        word, direction = actions
        position, velocity = particles.move(state.position, state.velocity, particles.thrust(direction))
        state = state._replace(position=position, velocity=velocity, word=word.astype(jnp.int32))
        reward, never = -jnp.sum((position - state.landmarks[state.goal]) ** 2), jnp.zeros((), bool)
        return state, TimeStep(observe(state), jnp.full(2, reward), never, never)

    colour, plane = spaces.Box(0.0, 1.0, (3,), np.float32), spaces.Box(-np.inf, np.inf, (11,), np.float32)
    actions: tuple[spaces.Space, ...] = (spaces.Discrete(WORDS), spaces.Discrete(len(particles.MOVES)))
    team = Team(reset, step, (colour, plane), actions, (), "SpeakerListener", particles.STEPS, render, 10)
    return pad(team, agent_id=False)


def render(state: SpeakerListenerState, actions: tuple[Any, ...] | None, params: PyTree) -> np.ndarray:
    """Draw landmarks, the listener with its move and a core in the colour of its goal, and the word of the speaker at the top."""
    (canvas, reach), goal = particles.scene(state.position, state.landmarks), particles.COLOURS[int(state.goal)]
    particles.draw_landmarks(canvas, state.landmarks, particles.COLOURS, RADIUS_OF_LANDMARKS)
    particles.draw_agent(canvas, state.position, RADIUS, JOINT, None if actions is None else int(actions[1]))
    particles.draw_landmarks(canvas, [state.position], [goal], RADIUS / 2)
    particles.draw_words(canvas, reach, [(int(state.word), goal)], WORDS)
    return canvas.picture()

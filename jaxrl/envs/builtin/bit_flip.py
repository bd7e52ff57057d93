"""Bit flipping (Andrychowicz et al. 2017, section 3.1): a goal environment that random actions practically never solve."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.rendering.canvas import BODY, FAINT, FORCE, Canvas
from jaxrl.spaces.goals import ACHIEVED, DESIRED, OBSERVATION
from jaxrl.types import Array, Env, Key, PyTree, TimeStep


class BitFlipState(NamedTuple):
    bits: Array
    """i8[n]"""
    goal: Array
    """i8[n]"""


def bit_flip(n: int = 15) -> Env:
    """``jaxrl:BitFlip?n=15``: match n bits to the goal within n steps; each action flips one bit.

    Bits and goal are drawn uniformly and differ. The reward is 1 when the goal is reached, which ends the episode, and 0
    otherwise, so the return is 1 for a success and 0 for a failure. The paper's rewards, 0 and −1, rank policies in the same way.

    Observations are a Dict: ``observation`` and ``achieved_goal`` hold the bits, ``desired_goal`` the goal, i8[n] each.
    """

    def observe(state: BitFlipState) -> PyTree:
        return {OBSERVATION: state.bits, ACHIEVED: state.bits, DESIRED: state.goal}

    def reset(key: Key, params: PyTree) -> tuple[BitFlipState, PyTree]:
        bits, goal = jax.random.bernoulli(key, shape=(2, n)).astype(jnp.int8)
        state = BitFlipState(bits, jnp.where((bits == goal).all(), 1 - goal, goal))
        return state, observe(state)

    def step(key: Key, state: BitFlipState, action: Array, params: PyTree) -> tuple[BitFlipState, TimeStep]:
        bits = jnp.where(jnp.arange(n) == action, 1 - state.bits, state.bits)
        state = BitFlipState(bits, state.goal)
        reward, terminated = compute_reward(bits, state.goal)
        return state, TimeStep(observe(state), reward, terminated, jnp.zeros((), bool))

    space, bits = spaces.MultiBinary(n), (OBSERVATION, ACHIEVED, DESIRED)
    return Env(
        reset,
        step,
        spaces.Dict(dict.fromkeys(bits, space)),
        spaces.Discrete(n),
        max_episode_steps=n,
        render=render,
        render_fps=4,
        compute_reward=compute_reward,
    )


def compute_reward(achieved: Array, desired: Array) -> tuple[Array, Array]:
    reached = (achieved == desired).all()
    return reached.astype(jnp.float32), reached


def render(state: BitFlipState, action: Any, params: PyTree) -> np.ndarray:
    """Draw the bits above those of the goal, filled where they are 1. The flipped bit is marked."""
    n = len(state.bits)
    canvas = Canvas(0, n, 0, 2.6)
    for bits, bottom in ((state.bits, 1.5), (state.goal, 0.1)):
        for i, bit in enumerate(np.asarray(bits)):
            left, right, top = i + 0.1, i + 0.9, bottom + 0.8
            canvas.polygon([(left, bottom), (right, bottom), (right, top), (left, top)], BODY if bit else FAINT)
    if action is not None:
        canvas.line([(int(action) + 0.15, 1.25), (int(action) + 0.85, 1.25)], 0.12, FORCE)
    return canvas.picture()

"""The two-step game (Rashid et al. 2018, section 6.1): a return of 8 needs values that are not sums over agents."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.rendering.canvas import BODY, FAINT, GOAL, Canvas
from jaxrl.envs.teams import Team, pad
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

PAYOFFS = (((0, 0), (0, 0)), ((7, 7), (7, 7)), ((0, 1), (1, 8)))
"""Rewards of both agents by state, action of the first and action of the second agent. The states are the choice, 2A and 2B."""
OVER = 3
"""State after the second step."""


def two_step() -> Env:
    """``jaxrl:TwoStep``: choose between a safe game and one that pays more if both agents choose the same action.

    In the first state, the action of the first agent leads to game 2A (action 0) or 2B (action 1), and the reward is 0. In 2A
    both agents get 7, in 2B they get [[0, 1], [1, 8]] by their actions; then the episode terminates. The best return is 8. Value
    decomposition into a sum (VDN) prefers 2A and gets 7.

    Observations are the state, one-hot, f32[3]; zeros at the end. Actions are Discrete(2).
    """

    def observe(state: Array) -> tuple[Array, Array]:
        seen = jax.nn.one_hot(state, OVER, dtype=jnp.float32)
        return seen, seen

    def reset(key: Key, params: PyTree) -> tuple[Array, Any]:
        state = jnp.zeros((), jnp.int32)
        return state, observe(state)

    def step(key: Key, state: Array, actions: tuple[Array, ...], params: PyTree) -> tuple[Array, TimeStep]:
        first, second = actions
        reward = jnp.full(2, jnp.array(PAYOFFS, jnp.float32)[state, first, second])
        over = state > 0
        state = jnp.where(over, OVER, 1 + first).astype(jnp.int32)
        return state, TimeStep(observe(state), reward, over, jnp.zeros((), bool))

    space = spaces.Box(0.0, 1.0, (3,), np.float32)
    game = Team(reset, step, (space,) * 2, (spaces.Discrete(2),) * 2, render=render, render_fps=1)
    return pad(game, agent_id=False)


def render(state: Any, actions: tuple[Any, ...] | None, params: PyTree) -> np.ndarray:
    """Draw the states, the first on the left, then 2A above 2B: the present one filled. Discs below show the actions that led to
    it, filled for action 1."""
    canvas = Canvas(0, 4, 0, 3)
    places = ((0.9, 1.7), (2.4, 2.3), (2.4, 1.1), (3.5, 1.7))
    for x, y in places[1:3]:
        canvas.line([places[0], (x, y), places[3]], 0.04, FAINT)
    for i, (x, y) in enumerate(places):
        canvas.disc(x, y, 0.35, BODY if i == int(state) else FAINT)
    for i, action in enumerate(actions or ()):
        canvas.disc(1.6 + 0.8 * i, 0.35, 0.2, GOAL)
        canvas.disc(1.6 + 0.8 * i, 0.35, 0.2 if int(action) else 0.15, GOAL if int(action) else "#ffffff")
    return canvas.picture()

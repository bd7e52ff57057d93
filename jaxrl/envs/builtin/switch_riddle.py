"""The switch riddle (Foerster et al. 2016, section 6.1): prisoners who can only talk through a light."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.rendering.canvas import BODY, FAINT, FORCE, GOAL, GROUND, Canvas
from jaxrl.envs.teams import Team, pad
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

NOTHING, SWITCH, TELL = range(3)
"""Actions."""


class SwitchRiddleState(NamedTuple):
    day: Array
    """i32[], from 0"""
    inside: Array
    """i32[]: agent in the room today"""
    light: Array
    """bool[]"""
    been: Array
    """bool[A]: agents that have been in the room, without today's"""
    told: Array
    """bool[]: whether the agent of the day before told"""


def switch_riddle(agents: int = 3) -> Env:
    """``jaxrl:SwitchRiddle?agents=3``: tell the warden once all agents have been in the room.

    Each day, one agent is drawn uniformly, with replacement, and taken into a room with a light, which is off on the first day.
    That agent does nothing (0), switches the light on or off (1), or tells (2) that all have been in the room, itself and today
    included. Telling terminates the episode: all agents get 1 if it is true and −1 if not. All other rewards are 0. The episode
    terminates after 4·agents − 6 days. Actions of agents outside are ignored.

    Observations are f32[2]: whether the agent is in the room today, and whether the light is on, which only that agent sees (0
    outside). Actions are Discrete(3). To solve it, agents need memory.

    With 3 agents and 6 days, an agent that knows who has been inside gets at most 1 − 3·(2/3)⁶ + 3·(1/3)⁶ = 0.741 on average,
    the probability that all have been inside by the last day. Agents that remember what they saw can reach this bound: the second
    of them to come, on a later day than the first, switches the light on, and who comes in for the first time then tells.

    Args:
      agents: number of agents, at least 2.
    """
    if agents < 2:
        raise ValueError(f"jaxrl:SwitchRiddle: option agents={agents} must be an integer >= 2: one agent has 4 − 6 days")
    days = 4 * agents - 6

    def drawn(key: Key) -> Array:
        return jax.random.randint(key, (), 0, agents)

    def observe(state: SwitchRiddleState) -> tuple[Array, ...]:
        here = jnp.arange(agents) == state.inside
        return tuple(jnp.stack([here, here & state.light], -1).astype(jnp.float32))

    def reset(key: Key, params: PyTree) -> tuple[SwitchRiddleState, tuple[Array, ...]]:
        no = jnp.zeros((), bool)
        state = SwitchRiddleState(jnp.zeros((), jnp.int32), drawn(key), no, jnp.zeros(agents, bool), no)
        return state, observe(state)

    def step(key: Key, state: SwitchRiddleState, actions: tuple[Array, ...], params: PyTree) -> tuple[Any, TimeStep]:
        action, been = jnp.stack(actions)[state.inside], state.been | (jnp.arange(agents) == state.inside)
        told, day = action == TELL, state.day + 1
        reward = jnp.where(told, jnp.where(been.all(), 1.0, -1.0), 0.0)
        state = SwitchRiddleState(day, drawn(key), state.light ^ (action == SWITCH), been, told)
        return state, TimeStep(observe(state), jnp.full(agents, reward), told | (day >= days), jnp.zeros((), bool))

    space = spaces.Box(0.0, 1.0, (2,), np.float32)
    riddle = Team(reset, step, (space,) * agents, (spaces.Discrete(3),) * agents, render=render, render_fps=2)
    return pad(riddle, agent_id=False)


def render(state: SwitchRiddleState, actions: tuple[Any, ...] | None, params: PyTree) -> np.ndarray:
    """Draw today's agent in the room under the light, and the others outside: filled if they have been inside. A frame is red
    after an agent told."""
    agents, inside = len(state.been), int(state.inside)
    width = max(4.0, agents + 1.0)
    canvas, middle = Canvas(0, width, 0, 4), width / 2
    corners = [(middle - 0.9, 1.6), (middle + 0.9, 1.6), (middle + 0.9, 3.8), (middle - 0.9, 3.8), (middle - 0.9, 1.6)]
    canvas.line(corners, 0.06, FORCE if state.told else GROUND)
    canvas.disc(middle, 3.4, 0.22, GROUND)
    canvas.disc(middle, 3.4, 0.18, "#ffd33d" if state.light else FAINT)
    for agent, been in enumerate(np.asarray(state.been)):
        x, y = (middle, 2.2) if agent == inside else (middle + agent - (agents - 1) / 2, 0.7)
        canvas.disc(x, y, 0.35, BODY)
        canvas.disc(x, y, 0.27, BODY if been else "#ffffff")
        for dot in range(agent + 1):  # the number of the agent
            canvas.disc(x + 0.16 * (dot - agent / 2), y, 0.06, GOAL)
    return canvas.picture()

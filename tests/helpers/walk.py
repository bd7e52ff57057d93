"""A walk on a line, whose episodes have different lengths: for tests of populations. Also its episodes in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.types import Env, TimeStep


class Ground(NamedTuple):
    """Parameters of the walk. All are sums of few powers of two."""

    start: Any = 0.0
    spread: Any = 0.75
    """Half the range of the first positions around ``start``."""
    stride: Any = 0.25
    noise: Any = 0.125
    """Standard deviation of the noise in each row."""
    edge: Any = 1.0
    """Distance from 0 at which an episode terminates."""


WALK = "tests.helpers.walk:walk"
BOX_WALK = "tests.helpers.walk:walk?box=True"


def walk(box: bool = False) -> Env:
    """Build the walk. Observations are the position and an eighth of the time, the reward is the position reached.

    What follows the end of an episode is NaN: rewards, and the last observation. Positions and returns of Discrete actions are
    computed without rounding, so they do not depend on the order of operations that a compiler chooses.
    """

    def on_grid(x: Any) -> Any:
        return jnp.round(x * 16) / 16

    def observe(state: Any, params: Ground) -> Any:
        position, time = state
        return jnp.where(jnp.abs(position) > params.edge, jnp.nan, jnp.stack([position, time / 8]))

    def reset(key: jax.Array, params: Ground) -> Any:
        position = params.start + params.spread * on_grid(jax.random.uniform(key, minval=-1.0))
        state = (position, jnp.zeros(()))
        return state, observe(state, params)

    def step(key: jax.Array, state: Any, action: Any, params: Ground) -> Any:
        before, time = state
        direction = jnp.clip(action[0], -1, 1) if box else 2.0 * action - 1
        position = before + params.stride * direction + params.noise * on_grid(jax.random.normal(key))
        state = (position, time + 1)
        reward = jnp.where(jnp.abs(before) > params.edge, jnp.nan, position)
        return state, TimeStep(observe(state, params), reward, jnp.abs(position) > params.edge, jnp.array(False))

    actions = spaces.Box(-1, 1, (1,), np.float32) if box else spaces.Discrete(2)
    return Env(reset, step, spaces.Box(-9, 9, (2,), np.float32), actions, Ground(), BOX_WALK if box else WALK)


class Walked(NamedTuple):
    """An episode in NumPy."""

    episodic_return: float
    episodic_length: int
    finished: bool
    observations: np.ndarray
    """f64[length, 2], those that were acted on."""


def walked(start: float, choose: Callable[[np.ndarray], int], rows: int) -> Walked:
    """Play an episode without noise, of at most ``rows`` rows."""
    ground, position, total, seen = Ground(), start, 0.0, []
    for time in range(rows):
        seen.append(np.array([position, time / 8]))
        position += ground.stride * (2 * choose(seen[-1]) - 1)
        total += position
        if abs(position) > ground.edge:
            return Walked(total, time + 1, True, np.stack(seen))
    return Walked(total, rows, False, np.stack(seen))

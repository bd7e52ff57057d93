"""Conversion of actions between the units of the environment and those of the model, [−1, 1]."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.spaces.trees import bounds
from jaxrl.types import Array


def to_environment(action_space: spaces.Space, action: Array) -> Array:
    """Convert an action from model units to the environment's: for a bounded Box, clip to [−1, 1] and map onto the bounds.

    Actions of a Box that is not bounded on both sides are only clipped to the bounds that it has. Actions of Box and
    MultiDiscrete spaces are flat, [..., d], and are reshaped to the shape of the space. Discrete actions are the same in both.
    """
    if isinstance(action_space, spaces.Discrete):
        return action
    assert isinstance(action_space, spaces.Box | spaces.MultiDiscrete)
    action = action.reshape(action.shape[:-1] + action_space.shape)
    if isinstance(action_space, spaces.MultiDiscrete):
        return action
    low, high = bounds(action_space)
    return within(action, low, high) if action_space.is_bounded() else jnp.clip(action, low, high)


def from_environment(action_space: spaces.Space, action: Array) -> Array:
    """Invert ``to_environment``: actions of a bounded Box become f32[..., d] in [−1, 1], and a component with equal bounds 0;
    those of Box and MultiDiscrete spaces become flat."""
    if isinstance(action_space, spaces.Discrete):
        return action
    assert isinstance(action_space, spaces.Box | spaces.MultiDiscrete)
    if isinstance(action_space, spaces.MultiDiscrete) or not action_space.is_bounded():
        return action.reshape(*action.shape[: action.ndim - len(action_space.shape)], -1)
    low, high = (bound.ravel() for bound in bounds(action_space))
    flat = action.reshape((*action.shape[: action.ndim - len(action_space.shape)], low.size))
    centre, half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low  # halved first: high - low may overflow
    return jnp.clip((flat - centre) / np.where(half > 0, half, 1.0), -1.0, 1.0)


def within(unit: Array, low: Array | np.ndarray, high: Array | np.ndarray) -> Array:
    """Clip to [−1, 1] and map onto [low, high], both ends included."""
    share = 0.5 * (jnp.clip(unit, -1.0, 1.0) + 1.0)
    return jnp.clip(low * (1.0 - share) + high * share, low, high)  # the mapping rounds

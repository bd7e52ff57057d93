"""Actions in the units of the environment and in the model's, [−1, 1]."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.spaces.trees import bounds
from jaxrl.types import Array


def to_environment(action_space: spaces.Space, action: Array) -> Array:
    """An action in model units as the environment takes it: a bounded Box maps [−1, 1], clipped, onto its bounds.

    A Box without bounds on both sides is taken as it is, clipped to the bounds that it has. Actions of a Box and of a
    MultiDiscrete space come flat, [..., d], and get the shape of the space; discrete ones are the same in both units.
    """
    if isinstance(action_space, spaces.Discrete):
        return action
    assert isinstance(action_space, spaces.Box | spaces.MultiDiscrete)
    action = action.reshape(action.shape[:-1] + action_space.shape)
    if isinstance(action_space, spaces.MultiDiscrete):
        return action
    low, high = bounds(action_space)
    return within(action, low, high) if action_space.is_bounded() else jnp.clip(action, low, high)


def from_environment(action_space: spaces.Box, action: Array) -> Array:
    """The inverse of ``to_environment`` for a bounded Box: f32[..., d] in [−1, 1], flat. A component without width is 0."""
    low, high = (bound.ravel() for bound in bounds(action_space))
    flat = action.reshape((*action.shape[: action.ndim - len(action_space.shape)], low.size))
    centre, half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low  # each by itself: the width may be larger than any float32
    return jnp.clip((flat - centre) / np.where(half > 0, half, 1.0), -1.0, 1.0)


def within(unit: Array, low: Array | np.ndarray, high: Array | np.ndarray) -> Array:
    """[−1, 1], clipped, onto [low, high], all ends included."""
    share = 0.5 * (jnp.clip(unit, -1.0, 1.0) + 1.0)
    return jnp.clip(low * (1.0 - share) + high * share, low, high)  # after the mapping as well, which rounds

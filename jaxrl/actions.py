"""From what a model says to what an environment takes: bounds and exploration."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.spaces import bounds
from jaxrl.threefry import unrolled
from jaxrl.types import Array, Key


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


def within(unit: Array, low: Array | np.ndarray, high: Array | np.ndarray) -> Array:
    """[−1, 1], clipped, onto [low, high], all ends included."""
    share = 0.5 * (jnp.clip(unit, -1.0, 1.0) + 1.0)
    return jnp.clip(low * (1.0 - share) + high * share, low, high)  # after the mapping as well, which rounds


def falling_epsilon(hyperparams: Any, rows: Array) -> Array:
    """f32[]: from ``epsilon_start`` to ``epsilon_end``, linearly, over the first ``exploration_steps`` rows."""
    share = jnp.clip(rows / hyperparams.exploration_steps, 0.0, 1.0)
    return hyperparams.epsilon_start + (hyperparams.epsilon_end - hyperparams.epsilon_start) * share


def epsilon_greedy(q_values: Array, mask: Array | None, epsilon: Array, keys: Key) -> Array:
    """Greedy actions, but with probability ``epsilon`` uniform over the allowed ones; ``keys[b]`` decides for row b."""
    logits = jnp.zeros_like(q_values) if mask is None else jnp.where(mask.astype(bool), 0.0, -jnp.inf)

    def choose(greedy: Array, logits: Array, key: Key) -> Array:
        explore_key, action_key = jax.random.split(key)
        uniform = jax.random.categorical(action_key, logits)
        return jnp.where(jax.random.uniform(explore_key) < epsilon, uniform, greedy).astype(jnp.int32)

    return jax.vmap(choose)(jnp.argmax(q_values, -1), logits, unrolled(keys))

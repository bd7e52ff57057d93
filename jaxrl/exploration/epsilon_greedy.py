"""Epsilon-greedy actions, and schedules of epsilon."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.spaces.action_masks import some_allowed
from jaxrl.types import Array, Key
from jaxrl.xla import fast_random


def falling_epsilon(hyperparams: Any, rows: Array) -> Array:
    """Return epsilon, f32[]: linear from ``epsilon_start`` to ``epsilon_end`` over the first ``exploration_steps`` rows."""
    share = jnp.clip(rows / hyperparams.exploration_steps, 0.0, 1.0)
    return hyperparams.epsilon_start + (hyperparams.epsilon_end - hyperparams.epsilon_start) * share


def spread_epsilon(epsilon: Array, exponent: float, env_id: Array, num_envs: int) -> Array:
    """Return ``epsilon`` ** (1 + ``exponent``·i / (num_envs − 1)) for environment i, f32[B] (Horgan et al. 2018, section 4.1).

    With an exponent of 0, return ``epsilon``, f32[]. With one environment, it explores with ``epsilon``.
    """
    if not exponent:
        return epsilon
    return jnp.power(epsilon, 1.0 + exponent * env_id / max(num_envs - 1, 1))


def epsilon_greedy(q_values: Array, mask: Array | None, epsilon: Array, keys: Key) -> Array:
    """Choose greedy actions or, with probability ``epsilon``, f32[] or f32[B], uniform ones among those allowed.

    Row b draws with ``keys[b]``.
    """
    logits = jnp.zeros_like(q_values) if mask is None else jnp.where(some_allowed(mask.astype(bool)), 0.0, -jnp.inf)

    def choose(greedy: Array, logits: Array, epsilon: Array, key: Key) -> Array:
        explore_key, action_key = fast_random.split(key)
        uniform = fast_random.categorical(action_key, logits)
        return jnp.where(fast_random.uniform(explore_key) < epsilon, uniform, greedy).astype(jnp.int32)

    rates = 0 if jnp.ndim(epsilon) else None
    return jax.vmap(choose, (0, 0, rates, 0))(jnp.argmax(q_values, -1), logits, epsilon, keys)

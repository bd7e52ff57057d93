"""Returns and advantages: pure functions of time-major arrays.

Every function takes the next values explicitly (``v_t`` beside ``v_tm1``), because with NEXT_STEP rows the value that follows
row t is ``V(inputs[t + 1])`` whatever happened at t: after a termination it is multiplied by 0, after a truncation it is the
value of the true last observation.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from jaxrl.types import Array


def discounted_sums(r_t: Array, discount_t: Array, bootstrap: Array) -> Array:
    """G_t = r_t + discount_t · G_{t+1}, with G_T = ``bootstrap``.

    Args:
      r_t: f32[T, ...] rewards.
      discount_t: f32[T, ...] in [0, 1]: gamma, or 0 where the sum must stop.
      bootstrap: f32[...] what follows the last row.

    Returns:
      f32[T, ...].
    """
    chex.assert_equal_shape([r_t, discount_t])
    chex.assert_equal_shape([r_t[0], bootstrap])

    def backward(g_t: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        g_tm1 = row[0] + row[1] * g_t
        return g_tm1, g_tm1

    return jax.lax.scan(backward, bootstrap, (r_t, discount_t), reverse=True, unroll=min(16, r_t.shape[0]))[1]


def gae(
    r_t: Array,
    v_tm1: Array,
    v_t: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    gamma: Array | float,
    gae_lambda: Array | float,
) -> Array:
    """Generalised advantage estimation over rows of several episodes (Schulman et al. 2016, eq. 16).

    A_t = δ_t + γλ·(1 − end_t)·A_{t+1} with δ_t = r_t + γ·(1 − terminated_t)·v_t − v_tm1 and end = terminated or truncated.
    Invalid rows (resets, padding) have advantage 0, so nothing leaks over them.

    Args:
      r_t: f32[T, B] rewards.
      v_tm1: f32[T, B] V(inputs[t]), the value of the row's own observation.
      v_t: f32[T, B] V(inputs[t + 1]), the value of the observation that the row reached.
      terminated: bool[T, B]; wins where ``truncated`` is true as well.
      truncated: bool[T, B].
      valid: bool[T, B].
      gamma: discount in [0, 1].
      gae_lambda: trace decay in [0, 1]; 0 gives the one-step error, 1 the Monte-Carlo advantage.

    Returns:
      f32[T, B] advantages; the λ-return is advantage + v_tm1.
    """
    chex.assert_rank([r_t, v_tm1, v_t, terminated, truncated, valid], 2)
    chex.assert_equal_shape([r_t, v_tm1, v_t, terminated, truncated, valid])
    delta_t = r_t + gamma * jnp.where(terminated, 0.0, v_t) - v_tm1
    decay_t = jnp.where(terminated | truncated, 0.0, gamma * gae_lambda)
    return discounted_sums(jnp.where(valid, delta_t, 0.0), jnp.where(valid, decay_t, 0.0), jnp.zeros_like(r_t[0]))

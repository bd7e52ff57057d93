"""Returns and advantages: pure functions of time-major arrays.

``discounts`` turns the flags of NEXT_STEP rows into two arrays that all of them take, as in rlax: ``discount_t``, what the value
of the observation that a row reached counts, and ``lambda_t``, how far the rows behind it are preferred to that value. Next
values stand beside the others (``v_t`` beside ``v_tm1``), because what follows row t is ``V(inputs[t + 1])`` whatever happened
at t.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from jaxrl.settings.validation import check_count
from jaxrl.types import Array


class Ends(Protocol):
    """Rows, bool[T, B], such as a ``Rollout``."""

    @property
    def terminated(self) -> Array: ...
    @property
    def truncated(self) -> Array: ...
    @property
    def valid(self) -> Array: ...


def discounts(rows: Ends, gamma: Array | float, lam: Array | float = 1.0) -> tuple[Array, Array]:
    """``(discount_t, lambda_t)``, f32[T, B].

    The discount is ``gamma``, and 0 after a termination: nothing is beyond, whatever else is true. The trace goes on by ``lam``
    into the next row of the same episode, and is 0 at every end and before padding, so that what follows is the value reached.
    Both are 0 on rows that are not valid.

    Args:
      rows: what is terminated, truncated and valid.
      gamma: discount in [0, 1].
      lam: trace decay in [0, 1]; 0 trusts the values, 1 the rewards.
    """
    chex.assert_equal_shape([rows.terminated, rows.truncated, rows.valid])
    next_valid = jnp.concatenate([rows.valid[1:], rows.valid[-1:]])
    goes_on = rows.valid & next_valid & ~rows.terminated & ~rows.truncated
    return jnp.where(rows.valid & ~rows.terminated, gamma, 0.0), jnp.where(goes_on, lam, 0.0)


def episode_completed(rows: Ends) -> Array:
    """bool[T, B]: the rows whose episode goes on to its end, terminated or truncated, within the rows. None that is not valid."""
    ends, (_, goes_on) = rows.valid & (rows.terminated | rows.truncated), discounts(rows, 1.0)
    return discounted_sums(ends.astype(jnp.float32), goes_on, jnp.zeros_like(goes_on[0])) > 0


def bootstrap_mask(rows: Ends) -> Array:
    """bool[T + 1, B]: the inputs that something is learnt from: those of valid rows, and what these reached and did not terminate
    at. The value of others counts for nothing."""
    nothing = jnp.zeros_like(rows.valid[:1])
    return jnp.concatenate([nothing, rows.valid & ~rows.terminated]) | jnp.concatenate([rows.valid, nothing])


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


def gae(r_t: Array, discount_t: Array, lambda_t: Array, v_tm1: Array, v_t: Array, valid: Array) -> Array:
    """Generalised advantage estimation over rows of several episodes (Schulman et al. 2016, eq. 16).

    A_t = δ_t + discount_t·lambda_t·A_{t+1} with δ_t = r_t + discount_t·v_t − v_tm1. Rows that are not valid have advantage 0.

    Args:
      r_t: f32[T, B] rewards.
      discount_t: f32[T, B], and lambda_t, as ``discounts`` gives them.
      v_tm1: f32[T, B] V(inputs[t]), the value of the row's own observation.
      v_t: f32[T, B] V(inputs[t + 1]), the value of the observation that the row reached; not looked at where the discount is 0.
      valid: bool[T, B].

    Returns:
      f32[T, B] advantages; the λ-return is advantage + v_tm1.
    """
    chex.assert_rank([r_t, discount_t, lambda_t, v_tm1, v_t, valid], 2)
    chex.assert_equal_shape([r_t, discount_t, lambda_t, v_tm1, v_t, valid])
    delta_t = jnp.where(valid, r_t + discount_t * _beyond(discount_t, v_t) - v_tm1, 0.0)
    return discounted_sums(delta_t, discount_t * lambda_t, jnp.zeros_like(r_t[0]))


def gae_from_dones(
    rewards: Array, values: Array, dones: Array, gamma: Array | float, lam: Array | float, final_values: Array | None = None
) -> Array:
    """Generalised advantage estimation of plain arrays, in which the step after a done is the first of the next episode.

    For loops that are not jaxrl's. Rollouts, in which a step after an end is spent on the reset, are for ``gae``.

    Args:
      rewards: f32[T, ...], such as [T] or [T, B].
      values: f32[T + 1, ...] V of the observation that each step began with; last, of what the last step reached.
      dones: bool[T, ...]: whether the step ended its episode. CleanRL and Stable-Baselines3 keep whether the step before did:
        ``np.concatenate([dones[1:], next_done[None]])`` is what is meant here.
      gamma: discount in [0, 1].
      lam: trace decay in [0, 1].
      final_values: f32[T, ...] what lies beyond each done: V of the episode's last observation where a limit cut it, 0 where it
        terminated; not looked at elsewhere. None: every done is a termination.

    Returns:
      f32[T, ...] advantages; the λ-return is advantage + values[:-1].

    Raises:
      ValueError: the shapes do not fit.
    """
    r_t, v, ended = jnp.asarray(rewards, jnp.float32), jnp.asarray(values, jnp.float32), jnp.asarray(dones, bool)
    beyond = jnp.zeros_like(r_t) if final_values is None else jnp.asarray(final_values, jnp.float32)
    wanted = {"values": (v.shape, (len(r_t) + 1, *r_t.shape[1:])), "dones": (ended.shape, r_t.shape)}
    for name, (shape, fits) in {**wanted, "final_values": (beyond.shape, r_t.shape)}.items():
        if shape != fits:
            why = ": one row more, whose value is that of what the last step reached" if name == "values" else ""
            raise ValueError(f"{name} has shape {shape}, and with rewards {r_t.shape} must have {fits}{why}")
    delta_t = r_t + gamma * jnp.where(ended, beyond, v[1:]) - v[:-1]
    return discounted_sums(delta_t, jnp.where(ended, 0.0, gamma * lam), jnp.zeros_like(r_t[0]))


def endless_gae(r_t: Array, values: Array, valid: Array, gamma: Array | float, lam: Array | float) -> Array:
    """The same of a reward that does not end with the episodes: what comes after an end is the first row of the next episode
    (Burda et al. 2018, section 2.3).

    Args:
      r_t: f32[T, B] rewards.
      values: f32[T + 1, B] V(inputs). That of the last row is what lies beyond.
      valid: bool[T, B]; other rows take no time.
      gamma: discount in [0, 1].
      lam: trace decay in [0, 1].

    Returns:
      f32[T, B] advantages, 0 on rows that are not valid; the λ-return is advantage + values[:-1].
    """
    chex.assert_rank([r_t, values, valid], 2)
    chex.assert_equal_shape([r_t, values[:-1], valid])
    v_tm1 = jnp.where(valid, values[:-1], 0.0)
    next_v = discounted_sums(v_tm1, jnp.where(valid, 0.0, 1.0), values[-1])  # of this row, or of the next that is valid
    v_t = jnp.concatenate([next_v[1:], values[-1:]])
    discount_t, lambda_t = jnp.where(valid, gamma, 1.0), jnp.where(valid, lam, 1.0)
    return jnp.where(valid, gae(r_t, discount_t, lambda_t, v_tm1, v_t, valid), 0.0)


def lambda_returns(r_t: Array, discount_t: Array, lambda_t: Array, v_t: Array, valid: Array) -> Array:
    """G_t = r_t + discount_t·((1 − lambda_t)·v_t + lambda_t·G_{t+1}), with G_T = V(inputs[T]) (Sutton & Barto 2018, eq. 12.20).

    Arguments as for ``gae``. With those of ``discounts(rollout, gamma)``: the discounted rewards to the end of the episode or of
    the rollout, and the value of what was reached there. Rows that are not valid have return 0.
    """
    chex.assert_rank([r_t, discount_t, lambda_t, v_t, valid], 2)
    chex.assert_equal_shape([r_t, discount_t, lambda_t, v_t, valid])
    beyond = _beyond(discount_t, v_t)
    reward_t = jnp.where(valid, r_t + discount_t * (1.0 - lambda_t) * beyond, 0.0)
    return discounted_sums(reward_t, discount_t * lambda_t, beyond[-1])


def n_step_returns(r_t: Array, discount_t: Array, lambda_t: Array, v_t: Array, valid: Array, n: int) -> Array:
    """The same, cut after n rewards, fewer where the episode or the rows end before (Sutton & Barto 2018, eq. 7.1).

    Arguments as for ``gae``, of ``discounts(rollout, gamma)``; n ≥ 1 is an integer, and as many passes over the rows.

    Raises:
      ValueError: n is none.
    """
    n = check_count("n", n)
    chex.assert_rank([r_t, discount_t, lambda_t, v_t, valid], 2)
    chex.assert_equal_shape([r_t, discount_t, lambda_t, v_t, valid])
    beyond = _beyond(discount_t, v_t)
    reward_t = jnp.where(valid, r_t, 0.0)
    g_t = reward_t + discount_t * beyond
    for _ in range(n - 1):
        after = jnp.concatenate([g_t[1:], beyond[-1:]])
        g_t = reward_t + discount_t * ((1.0 - lambda_t) * beyond + lambda_t * after)
    return g_t


class VTrace(NamedTuple):
    """f32[T, B] both; 0 on rows that are not valid."""

    target: Array
    """v_t, what the value of the row's own observation regresses to."""
    advantage: Array
    """ρ_t·(r_t + discount_t·v_{t+1} − v_tm1), the weight of the gradient of log π(a_t | x_t). With λ < 1, v_{t+1} is mixed with
    the value reached, as in ``lambda_returns``."""


def vtrace(
    r_t: Array,
    discount_t: Array,
    lambda_t: Array,
    v_tm1: Array,
    v_t: Array,
    log_rho_t: Array,
    valid: Array,
    rho_bar: Array | float = 1.0,
    c_bar: Array | float = 1.0,
) -> VTrace:
    """Returns and advantages of a policy π from rows in which another one, μ, acted (Espeholt et al. 2018, eq. 1).

    v_s = V(x_s) + δ_s + discount_s·c_s·(v_{s+1} − V(x_{s+1})), with δ_s = ρ_s·(r_s + discount_s·V(x_{s+1}) − V(x_s)),
    ρ_s = min(ρ̄, π/μ) and c_s = λ_s·min(c̄, π/μ) (their remark 2). With π = μ and bars of 1 or more, ``target`` is the λ-return.
    A lower ρ̄ moves the fixed point from the values of π towards those of μ; a lower c̄ only lowers the variance.

    Args:
      r_t: as for ``gae``, and so are discount_t, lambda_t, v_tm1, v_t and valid. Past an end nothing is looked at: there, and on
        the last row, v_{s+1} is the value reached, of which a termination leaves nothing.
      log_rho_t: f32[T, B] log π(a_t | x_t) − log μ(a_t | x_t).
      rho_bar: the clip ρ̄ > 0; the paper has ρ̄ ≥ c̄.
      c_bar: the clip c̄ > 0.
    """
    rows = [r_t, discount_t, lambda_t, v_tm1, v_t, log_rho_t, valid]
    chex.assert_rank(rows, 2)
    chex.assert_equal_shape(rows)
    ratio_t, beyond = jnp.exp(jnp.where(valid, log_rho_t, 0.0)), _beyond(discount_t, v_t)
    rho_t, c_t = jnp.minimum(ratio_t, rho_bar), lambda_t * jnp.minimum(ratio_t, c_bar)
    v_tm1 = jnp.where(valid, v_tm1, 0.0)
    delta_t = jnp.where(valid, rho_t * (r_t + discount_t * beyond - v_tm1), 0.0)
    error_tm1 = discounted_sums(delta_t, discount_t * c_t, jnp.zeros_like(r_t[0]))
    # v_{t+1} − V(x_{t+1}), where the episode goes on.
    error_t = lambda_t * jnp.concatenate([error_tm1[1:], jnp.zeros_like(error_tm1[:1])])
    advantage_t = rho_t * (r_t + discount_t * (beyond + error_t) - v_tm1)
    return VTrace(v_tm1 + error_tm1, jnp.where(valid, advantage_t, 0.0))


def _beyond(discount_t: Array, v_t: Array) -> Array:
    """``v_t``, but 0 where it must not count: 0 times a value that is not finite would be no 0."""
    return jnp.where(discount_t == 0, 0.0, v_t)

"""Returns and advantages: pure functions of time-major arrays.

``discounts`` converts the flags of NEXT_STEP rows to two arrays that all functions take, as in rlax. ``discount_t`` is the factor
on the value of the observation that row t reached. ``lambda_t`` is the weight of the rows after t, relative to that value. Next
values are a separate argument (``v_t`` next to ``v_tm1``), because the value after row t is always ``V(inputs[t + 1])``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import chex
import jax
import jax.numpy as jnp

from jaxrl.settings.validation import check_count
from jaxrl.spaces.entries import player_sign
from jaxrl.types import Array, StepInput


class Ends(Protocol):
    """Flags of rows, bool[T, B], such as those of a ``Rollout``."""

    @property
    def terminated(self) -> Array: ...
    @property
    def truncated(self) -> Array: ...
    @property
    def valid(self) -> Array: ...


@runtime_checkable
class InputsAndEnds(Ends, Protocol):
    """Flags of rows with their inputs, [T + 1, B]."""

    @property
    def inputs(self) -> StepInput: ...


def discounts(rows: Ends | InputsAndEnds, gamma: Array | float, lam: Array | float = 1.0) -> tuple[Array, Array]:
    """Return ``(discount_t, lambda_t)``, f32[T, B].

    The discount is ``gamma``, or 0 on a row that terminates. In a game of two players it is ``−gamma`` where the next row is the
    other player's, whose gain is this one's loss. The trace decay is ``lam`` if the next row belongs to the same
    episode. At the end of an episode and before padding it is 0, so the return bootstraps from the value reached. Both are 0 on
    rows that are not valid.

    Args:
      rows: the flags ``terminated``, ``truncated`` and ``valid``, and in games ``inputs``.
      gamma: discount in [0, 1].
      lam: trace decay in [0, 1]; 0 relies on the values, 1 on the rewards.
    """
    chex.assert_equal_shape([rows.terminated, rows.truncated, rows.valid])
    next_valid = jnp.concatenate([rows.valid[1:], rows.valid[-1:]])
    goes_on = rows.valid & next_valid & ~rows.terminated & ~rows.truncated
    player = player_sign(rows.inputs.obs) if isinstance(rows, InputsAndEnds) else 1.0
    sign = player if isinstance(player, float) else player[:-1] * player[1:]
    return jnp.where(rows.valid & ~rows.terminated, gamma * sign, 0.0), jnp.where(goes_on, lam, 0.0)


def episode_completed(rows: Ends) -> Array:
    """Return bool[T, B], true for valid rows whose episode ends, by termination or truncation, within the rows."""
    ends, (_, goes_on) = rows.valid & (rows.terminated | rows.truncated), discounts(rows, 1.0)
    return discounted_sums(ends.astype(jnp.float32), goes_on, jnp.zeros_like(goes_on[0])) > 0


def bootstrap_mask(rows: Ends) -> Array:
    """Return bool[T + 1, B], true for inputs whose value is used: those of valid rows, and those reached without termination."""
    nothing = jnp.zeros_like(rows.valid[:1])
    return jnp.concatenate([nothing, rows.valid & ~rows.terminated]) | jnp.concatenate([rows.valid, nothing])


def discounted_sums(r_t: Array, discount_t: Array, bootstrap: Array) -> Array:
    """Compute G_t = r_t + discount_t · G_{t+1}, with G_T = ``bootstrap``.

    Args:
      r_t: f32[T, ...] rewards.
      discount_t: f32[T, ...] in [−1, 1], as from ``discounts``; 0 where the sum must stop.
      bootstrap: f32[...] sum after the last row.

    Returns:
      f32[T, ...].
    """
    chex.assert_equal_shape([r_t, discount_t])
    chex.assert_equal_shape([r_t[0], bootstrap])
    bootstrap = jnp.asarray(bootstrap, jnp.result_type(r_t, discount_t))  # rewards may be integers, values bfloat16

    def backward(g_t: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        g_tm1 = row[0] + row[1] * g_t
        return g_tm1, g_tm1

    return jax.lax.scan(backward, bootstrap, (r_t, discount_t), reverse=True, unroll=min(16, r_t.shape[0]))[1]


def _check_rows(*rows: Array) -> None:
    """Check that all arrays have the same shape [T, B]."""
    chex.assert_rank(rows, 2)
    chex.assert_equal_shape(rows)


def gae(r_t: Array, discount_t: Array, lambda_t: Array, v_tm1: Array, v_t: Array, valid: Array) -> Array:
    """Compute generalised advantage estimates over rows of several episodes (Schulman et al. 2016, eq. 16).

    A_t = δ_t + discount_t·lambda_t·A_{t+1} with δ_t = r_t + discount_t·v_t − v_tm1. Rows that are not valid have advantage 0.

    Args:
      r_t: f32[T, B] rewards.
      discount_t: f32[T, B], from ``discounts``.
      lambda_t: f32[T, B], from ``discounts``.
      v_tm1: f32[T, B] V(inputs[t]), the value of the row's observation.
      v_t: f32[T, B] V(inputs[t + 1]), the value of the observation that the row reached; ignored where the discount is 0.
      valid: bool[T, B].

    Returns:
      f32[T, B] advantages; the λ-return is advantage + v_tm1.
    """
    _check_rows(r_t, discount_t, lambda_t, v_tm1, v_t, valid)
    delta_t = jnp.where(valid, r_t + discount_t * _beyond(discount_t, v_t) - v_tm1, 0.0)
    return discounted_sums(delta_t, discount_t * lambda_t, jnp.zeros_like(r_t[0]))


def gae_from_dones(
    rewards: Array, values: Array, dones: Array, gamma: Array | float, lam: Array | float, final_values: Array | None = None
) -> Array:
    """Compute generalised advantage estimates of plain arrays, in which the step after a done begins the next episode.

    This is for custom training loops. For jaxrl's rollouts, in which a reset row follows each end, use ``gae``.

    Args:
      rewards: f32[T, ...], such as [T] or [T, B].
      values: f32[T + 1, ...] V of the observation before each step, and last, of the observation that the last step reached.
      dones: bool[T, ...], true if the step ended its episode. CleanRL and Stable-Baselines3 store whether the previous step
        did; convert theirs by ``np.concatenate([dones[1:], next_done[None]])``.
      gamma: discount in [0, 1].
      lam: trace decay in [0, 1].
      final_values: f32[T, ...] value beyond each done: V of the episode's last observation if it was truncated, 0 if it
        terminated; ignored elsewhere. None: every done is a termination.

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
            why = ": one more row, the value of the observation that the last step reached" if name == "values" else ""
            raise ValueError(f"{name} has shape {shape}, but rewards {r_t.shape} require {fits}{why}")
    delta_t = r_t + gamma * jnp.where(ended, beyond, v[1:]) - v[:-1]
    return discounted_sums(delta_t, jnp.where(ended, 0.0, gamma * lam), jnp.zeros_like(r_t[0]))


def endless_gae(r_t: Array, values: Array, valid: Array, gamma: Array | float, lam: Array | float) -> Array:
    """Compute generalised advantage estimates of a reward that continues across episodes (Burda et al. 2018, section 2.3).

    The row that follows an end is the first of the next episode.

    Args:
      r_t: f32[T, B] rewards.
      values: f32[T + 1, B] V(inputs). The last value is the bootstrap.
      valid: bool[T, B]; other rows are skipped.
      gamma: discount in [0, 1].
      lam: trace decay in [0, 1].

    Returns:
      f32[T, B] advantages, 0 on rows that are not valid; the λ-return is advantage + values[:-1].
    """
    _check_rows(r_t, values[:-1], valid)
    v_tm1 = jnp.where(valid, values[:-1], 0.0)
    next_v = discounted_sums(v_tm1, jnp.where(valid, 0.0, 1.0), values[-1])  # of this row, or the next valid one
    v_t = jnp.concatenate([next_v[1:], values[-1:]])
    discount_t, lambda_t = jnp.where(valid, gamma, 1.0), jnp.where(valid, lam, 1.0)
    return jnp.where(valid, gae(r_t, discount_t, lambda_t, v_tm1, v_t, valid), 0.0)


def lambda_returns(r_t: Array, discount_t: Array, lambda_t: Array, v_t: Array, valid: Array) -> Array:
    """Compute λ-returns (Sutton & Barto 2018, eq. 12.20).

    G_t = r_t + discount_t·((1 − lambda_t)·v_t + lambda_t·G_{t+1}), with G_T = V(inputs[T]). The return is 0 on rows that are not
    valid.

    The arguments are those of ``gae``. With ``discounts(rollout, gamma)``, so λ = 1, the result is the discounted sum of rewards
    to the end of the episode or rollout, plus the discounted value reached there.
    """
    _check_rows(r_t, discount_t, lambda_t, v_t, valid)
    beyond = _beyond(discount_t, v_t)
    reward_t = jnp.where(valid, r_t + discount_t * (1.0 - lambda_t) * beyond, 0.0)
    return discounted_sums(reward_t, discount_t * lambda_t, beyond[-1])


def n_step_returns(r_t: Array, discount_t: Array, lambda_t: Array, v_t: Array, valid: Array, n: int) -> Array:
    """Compute n-step returns (Sutton & Barto 2018, eq. 7.1).

    A return has n rewards, or fewer if the episode or the rollout ends earlier. The other arguments are those of ``gae``, with
    ``discounts(rollout, gamma)``.

    Args:
      n: integer ≥ 1. The function makes n passes over the rows.

    Raises:
      ValueError: n is less than 1.
    """
    n = check_count("n", n)
    _check_rows(r_t, discount_t, lambda_t, v_t, valid)
    beyond = _beyond(discount_t, v_t)
    reward_t = jnp.where(valid, r_t, 0.0)
    g_t = reward_t + discount_t * beyond
    for _ in range(n - 1):
        after = jnp.concatenate([g_t[1:], beyond[-1:]])
        g_t = reward_t + discount_t * ((1.0 - lambda_t) * beyond + lambda_t * after)
    return g_t


class VTrace(NamedTuple):
    """Targets and advantages of V-trace, f32[T, B] each; 0 on rows that are not valid."""

    target: Array
    """v_t, the regression target for the value of the row's observation."""
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
    """Compute V-trace targets and advantages of a policy π from rows of a behaviour policy μ (Espeholt et al. 2018, eq. 1).

    v_s = V(x_s) + δ_s + discount_s·c_s·(v_{s+1} − V(x_{s+1})), with δ_s = ρ_s·(r_s + discount_s·V(x_{s+1}) − V(x_s)),
    ρ_s = min(ρ̄, π/μ) and c_s = λ_s·min(c̄, π/μ) (their remark 2). With π = μ and bars of 1 or more, ``target`` is the λ-return.
    A lower ρ̄ moves the fixed point from the values of π towards those of μ; a lower c̄ only lowers the variance.

    At the end of an episode and on the last row, v_{s+1} is the value reached, and a termination discounts it to 0. Rows after an
    end do not enter.

    Args:
      r_t: as for ``gae``, like discount_t, lambda_t, v_tm1, v_t and valid.
      log_rho_t: f32[T, B] log π(a_t | x_t) − log μ(a_t | x_t).
      rho_bar: the clip ρ̄ > 0; the paper has ρ̄ ≥ c̄.
      c_bar: the clip c̄ > 0.
    """
    _check_rows(r_t, discount_t, lambda_t, v_tm1, v_t, log_rho_t, valid)
    ratio_t, beyond = jnp.exp(jnp.where(valid, log_rho_t, 0.0)), _beyond(discount_t, v_t)
    rho_t, c_t = jnp.minimum(ratio_t, rho_bar), lambda_t * jnp.minimum(ratio_t, c_bar)
    v_tm1 = jnp.where(valid, v_tm1, 0.0)
    delta_t = jnp.where(valid, rho_t * (r_t + discount_t * beyond - v_tm1), 0.0)
    error_tm1 = discounted_sums(delta_t, discount_t * c_t, jnp.zeros_like(r_t[0]))
    # v_{t+1} − V(x_{t+1}) if the episode continues, else 0.
    error_t = lambda_t * jnp.concatenate([error_tm1[1:], jnp.zeros_like(error_tm1[:1])])
    advantage_t = rho_t * (r_t + discount_t * (beyond + error_t) - v_tm1)
    return VTrace(v_tm1 + error_tm1, jnp.where(valid, advantage_t, 0.0))


def _beyond(discount_t: Array, v_t: Array) -> Array:
    """Return ``v_t``, or 0 where the discount is 0, because 0 times a value that is not finite is NaN."""
    return jnp.where(discount_t == 0, 0.0, v_t)

"""Improvement of a policy within a KL divergence of it, as in MPO (Abdolmaleki et al. 2018a, 2018b)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.distributions import Categorical, Normal, TanhNormal
from jaxrl.types import Array


def improved(values: Array, temperature: Array, log_prior: Array | float) -> tuple[Array, Array]:
    """Return the improved policy q ∝ π⁻·exp(Q/η) and log E_π⁻[exp(Q/η)] (Abdolmaleki et al. 2018a, eq. 7 and 8).

    Args:
      values: Q of actions, f32[K, N].
      log_prior: log π⁻ of these actions, f32[K, N]; 0 for K samples of it.

    Returns:
      (weights of the actions f32[K, N], f32[N]).
    """
    scaled = values / temperature + log_prior
    number = 0.0 if isinstance(log_prior, jax.Array) else math.log(len(values))
    return jax.nn.softmax(scaled, 0), jax.nn.logsumexp(scaled, 0) - number


def temperature_loss(improvement: Array, temperature: Array, epsilon: Array | float) -> Array:
    """The dual η·ε + η·E[log E_π⁻[exp(Q/η)]], which is least where the improved policy's KL divergence from π⁻ is ε (Abdolmaleki
    et al. 2018a, eq. 8).

    Args:
      improvement: E[log E_π⁻[exp(Q/η)]], f32[].
    """
    return temperature * (epsilon + improvement)


def divergences(old: Categorical | TanhNormal, new: Categorical | TanhNormal) -> tuple[Array, ...]:
    """Return KL(π⁻ ‖ π) of each row: for a Box f32[d, N] each by the change of the mean, with the deviation of π⁻, and by that of
    the deviation (Abdolmaleki et al. 2018b, section 4.2.1); for Discrete actions f32[N]. Squashing does not change them."""
    if isinstance(old, Categorical):
        log_p, log_q = jax.nn.log_softmax(old.logits), jax.nn.log_softmax(new.logits)  # type: ignore[union-attr]
        return ((jnp.exp(log_p) * (log_p - log_q)).sum(-1),)
    assert isinstance(new, TanhNormal)
    ratio = old.log_std - new.log_std
    of_mean = 0.5 * jnp.square((new.mean - old.mean) * jnp.exp(-old.log_std))
    return of_mean.T, (0.5 * jnp.exp(2.0 * ratio) - ratio - 0.5).T


def likelihood(old: Categorical | TanhNormal, new: Categorical | TanhNormal, noise: Array) -> Array:
    """Return the log-probability of π⁻'s actions by the policy, f32[K, N]; for a Box the sum of those with the new mean and the
    old deviation, and with the old mean and the new deviation, before squashing."""
    if isinstance(new, Categorical):
        return jax.nn.log_softmax(new.logits).T
    assert isinstance(old, TanhNormal)
    drawn = old.mean + jnp.exp(old.log_std) * noise
    of_mean, of_deviation = (
        jax.vmap(Normal(*each).log_prob)(drawn) for each in ((new.mean, old.log_std), (old.mean, new.log_std))
    )
    return of_mean + of_deviation

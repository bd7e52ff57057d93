"""Improvement of a policy within a KL divergence of it, as in MPO (Abdolmaleki et al. 2018a, 2018b) and V-MPO (Song et al. 2020):
weights of actions at a temperature, a trust region, and the dual variables of both.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.distributions import Categorical, MultiCategorical, Normal, TanhNormal
from jaxrl.settings.validation import refuse_schedules, refuse_unused
from jaxrl.types import Array


class Duals(NamedTuple):
    """Temperature and Lagrange multipliers, each the softplus of what is stored, plus ``LEAST``."""

    temperature: Array
    """η, f32[]."""
    multipliers: tuple[Array, ...]
    """Weights of the KL divergences: for a Box f32[d] of the mean and of the deviation, otherwise f32[]."""

    @property
    def positive(self) -> Duals:
        """The temperature and the multipliers themselves."""
        return jax.tree.map(lambda x: jax.nn.softplus(x) + LEAST, self)


LEAST = 1e-8
"""Added to the softplus, because values that are all equal let the temperature fall without end."""


def init_duals(action_space: spaces.Space, temperature: Array | float, multipliers: Mapping[str, float]) -> Duals:
    """Return the duals at the start.

    Args:
      multipliers: those of ``mean``, ``deviation`` and ``discrete``.
    """
    raw = lambda x: jnp.log(jnp.expm1(jnp.minimum(x, 80.0))) + jnp.maximum(x - 80.0, 0.0)  # noqa: E731 # inverse of softplus
    if not isinstance(action_space, spaces.Box):
        return Duals(raw(temperature), (raw(jnp.float32(multipliers["discrete"])),))
    size = math.prod(action_space.shape)
    of_each = tuple(jnp.full(size, raw(multipliers[name]), jnp.float32) for name in ("mean", "deviation"))
    return Duals(raw(temperature), of_each)


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


KnownDistribution = Categorical | MultiCategorical | Normal | TanhNormal


def divergences(old: KnownDistribution, new: Any) -> tuple[Array, ...]:
    """Return KL(π⁻ ‖ π) of each row: for a Box f32[d, ...] each by the change of the mean, with the deviation of π⁻, and by that
    of the deviation (Abdolmaleki et al. 2018b, section 4.2.1); for other actions f32[...]. Squashing does not change them."""
    if isinstance(old, Categorical | MultiCategorical):
        return (old.kl(new),)
    ratio = old.log_std - new.log_std
    of_mean = 0.5 * jnp.square((new.mean - old.mean) * jnp.exp(-old.log_std))
    return jnp.moveaxis(of_mean, -1, 0), jnp.moveaxis(0.5 * jnp.exp(2.0 * ratio) - ratio - 0.5, -1, 0)


def kl_bounds(action_space: spaces.Space, hp: Any) -> tuple[Array, ...]:
    """Return the bounds of the ``divergences``, among the hyperparameters."""
    return (hp.mean_kl, hp.deviation_kl) if isinstance(action_space, spaces.Box) else (hp.discrete_kl,)


def trust_region(multipliers: Sequence[Array], bounds: Sequence[Array], apart: Sequence[Array]) -> tuple[Array, Array]:
    """Return the policy's penalty α·KL and the multipliers' loss α·(bound − KL) (Abdolmaleki et al. 2018a, eq. 12), summed.

    Args:
      apart: means of the ``divergences``.
    """
    triples = [*zip(multipliers, bounds, apart, strict=True)]
    penalty = sum((alpha * kl).sum() for alpha, _, kl in triples)
    loss = sum((alpha * (bound - jax.lax.stop_gradient(kl))).sum() for alpha, bound, kl in triples)
    return jnp.asarray(penalty), jnp.asarray(loss)


def refuse_without_effect(action_space: spaces.Space, hyperparams: Any, schedules: Container[str]) -> None:
    """Raise ValueError for bounds of other kinds of actions, their schedules, and a schedule of the temperature."""
    unused = ("discrete_kl",) if isinstance(action_space, spaces.Box) else ("mean_kl", "deviation_kl")
    refuse_unused(hyperparams, type(hyperparams)(), unused, f"on {action_space}")
    refuse_schedules(schedules, unused, f"on {action_space}")
    refuse_schedules(schedules, ("temperature",), "on η, which starts at it and is learned: use one for improvement_kl")


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

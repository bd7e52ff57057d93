"""Optimistic exploration (OAC, Ciosek et al. 2019): act with the policy that maximises an upper bound of the critics, within a KL
divergence of the learnt policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common import off_policy
from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup, action_values
from jaxrl.algorithms.common.critics.network_state import network_variables
from jaxrl.distributions import TanhNormal
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import NonNegative
from jaxrl.types import Array, Policy, StepInput


@option("optimistic")
class Optimistic(Option):
    """Explore with the policy, near the learnt one, that maximises an upper bound of the critics, given two or more, in Box
    actions."""

    beta: NonNegative = hyperparameter("optimism_beta", 4.66)
    """The upper bound is the critics' mean plus this many standard deviations."""
    kl: NonNegative = hyperparameter("optimism_kl", 23.53)
    """KL divergence of the acting policy from the learnt one, in nats."""


class OptimisticExploration(NamedTuple):
    """Exploration state of an optimistic policy."""

    at_random: Array
    """bool[]: draw actions uniformly between the bounds. True until the first update, and so during the warm-up."""
    beta: Array
    """f32[]: β of ``upper_bound``."""
    kl: Array
    """f32[]: KL divergence for ``shifted``, in nats."""


def policy(setup: ActorCriticSetup[Any], learner: Any) -> Policy:
    """Return the policy of ``off_policy``; with ``Optimistic``, add the critics and an ``OptimisticExploration``."""
    plain = off_policy.policy(setup, learner)
    if setup.config.exploration is None:
        return plain
    hp = setup.current(learner)
    exploration = OptimisticExploration(plain.exploration, hp.optimism_beta, hp.optimism_kl)
    return plain._replace(params=learner.params, statistics=learner.statistics, exploration=exploration)


def optimistic(setup: ActorCriticSetup[Any], policy: Policy, output: TanhNormal, inputs: StepInput) -> TanhNormal:
    """Return the distribution [B] to draw actions from at ``inputs``, given the policy's ``output``."""

    critic = network_variables(policy).critic

    def bound(action: Array) -> Array:
        values = setup.config.critics.values(action_values(setup, critic, inputs, action))
        return upper_bound(values, policy.exploration.beta)

    return shifted(output, bound, policy.exploration.kl)


def upper_bound(values: Array, beta: Array | float) -> Array:
    """Mean + β · standard deviation of the critics' values f32[num_critics, ...] (Ciosek et al. 2019).

    For two critics this is the mean plus β/2 times their distance. The gradient is finite where all critics agree.
    """
    mean = values.mean(0)
    variance = ((values - mean) ** 2).mean(0)
    deviation = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    return mean + beta * deviation


def shifted(policy: TanhNormal, value: Callable[[Array], Array], kl: Array | float) -> TanhNormal:
    """Shift the policy's Gaussian towards a higher ``value``, within a KL divergence of ``kl`` nats.

    The result has mean μ + √(2δ) · Σg / √(gᵀΣg) and the same covariance Σ. It maximises the expectation of ``value``, linearised
    at the policy's mean (Ciosek et al. 2019, proposition 1). Both distributions are squashed by the same function, so ``kl`` is
    also the divergence of the actions. g is the gradient with respect to the mean before squashing.

    Args:
      policy: f32[B, d], in [−1, 1].
      value: actions f32[B, d] -> f32[B]; each entry depends on its action only.
      kl: δ ≥ 0. With 0, or a gradient of 0, the policy is returned unchanged.
    """
    gradient = jax.grad(lambda mean: value(jnp.tanh(mean)).sum())(policy.mean)
    towards = gradient * jnp.exp(policy.log_std)  # in units of the standard deviation; only the direction matters
    size = jnp.linalg.norm(towards, axis=-1, keepdims=True)
    unit = towards / jnp.where(size > 0, size, 1.0)
    return policy._replace(mean=policy.mean + jnp.sqrt(2.0 * kl) * unit * jnp.exp(policy.log_std))

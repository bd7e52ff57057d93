"""Optimistic exploration (OAC, Ciosek et al. 2019): act by the policy that an upper bound of the critics likes best, within a
limit on how far it is from the one that is learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common import off_policy
from jaxrl.algorithms.common.critic_ensemble import ActorCriticSetup, action_values
from jaxrl.distributions import TanhNormal
from jaxrl.settings.validation import refuse_unused
from jaxrl.types import Array, Policy, StepInput


class OptimisticExploration(NamedTuple):
    """What optimistic acting needs besides the parameters of the policy and of the critics."""

    at_random: Array
    """bool[]: until the first update, so in all of the warm-up, actions are uniform between the bounds."""
    beta: Array
    """f32[]: of ``upper_bound``."""
    kl: Array
    """f32[]: of ``shifted``, in nats."""


def check_optimism(config: Any, hyperparams: Any) -> None:
    """Refuse settings of optimism without it, or it without two critics.

    Raises:
      ValueError: they are such.
    """
    if not config.optimistic:
        refuse_unused(hyperparams, type(hyperparams)(), ("optimism_beta", "optimism_kl"), "without optimistic=True")
    elif config.num_critics < 2:
        raise ValueError(f"num_critics={config.num_critics} cannot disagree, as optimistic=True needs it: use 2 or more")


def policy(setup: ActorCriticSetup[Any], learner: Any) -> Policy:
    """That of ``off_policy``; where ``optimistic``, with the critics and an ``OptimisticExploration``."""
    plain = off_policy.policy(setup, learner)
    if not setup.config.optimistic:
        return plain
    hp = setup.current(learner)
    return plain._replace(
        params=learner.params, exploration=OptimisticExploration(plain.exploration, hp.optimism_beta, hp.optimism_kl)
    )


def optimistic(setup: ActorCriticSetup[Any], policy: Policy, output: TanhNormal, inputs: StepInput) -> TanhNormal:
    """The distribution [B] to draw actions from at ``inputs``, where ``output`` is the policy's."""

    def bound(action: Array) -> Array:
        values = setup.config.head.values(action_values(setup, policy.params.critic, inputs, action))
        return upper_bound(values, policy.exploration.beta)

    return shifted(output, bound, policy.exploration.kl)


def upper_bound(values: Array, beta: Array | float) -> Array:
    """Mean + β · deviation of the critics' values f32[num_critics, ...] (Ciosek et al. 2019; of two critics it is their mean
    and β/2 of their distance). Its gradient is finite where all agree."""
    mean = values.mean(0)
    variance = ((values - mean) ** 2).mean(0)
    deviation = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    return mean + beta * deviation


def shifted(policy: TanhNormal, value: Callable[[Array], Array], kl: Array | float) -> TanhNormal:
    """Of all Gaussians with at most ``kl`` nats to the policy's, that with the greatest mean of ``value``, taken as linear at the
    policy's mean: μ + √(2δ) · Σg / √(gᵀΣg) with the same Σ (Ciosek et al. 2019, proposition 1).

    The squashing is the same for both, so that ``kl`` is of actions as well, and g is the gradient before it.

    Args:
      policy: f32[B, d], in [−1, 1].
      value: actions f32[B, d] -> f32[B], each of its own action alone.
      kl: δ ≥ 0; 0 is the policy itself, as is a gradient of 0.
    """
    gradient = jax.grad(lambda mean: value(jnp.tanh(mean)).sum())(policy.mean)
    towards = gradient * jnp.exp(policy.log_std)  # in deviations: only the direction counts
    size = jnp.linalg.norm(towards, axis=-1, keepdims=True)
    unit = towards / jnp.where(size > 0, size, 1.0)
    return policy._replace(mean=policy.mean + jnp.sqrt(2.0 * kl) * unit * jnp.exp(policy.log_std))

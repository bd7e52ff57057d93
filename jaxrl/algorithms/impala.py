"""IMPALA (Espeholt et al. 2018): an actor-critic that corrects rollouts of older policies with V-trace; memoryless or recurrent,
discrete or continuous.

Reads top to bottom: settings, loss, builder. Acting, the gradient and the terms of the loss are in
``jaxrl.algorithms.common.on_policy``; V-trace is in ``jaxrl.returns``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.on_policy import OnPolicyConfig, one_gradient, policy_gradient_loss, prepare_actor_critic
from jaxrl.builder.keywords import on_policy_keywords, with_keywords_of
from jaxrl.intrinsic.part import with_intrinsic
from jaxrl.returns import discounts, vtrace
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, Positive, Unit
from jaxrl.types import Agent, Array, EnvLike, Model, PyTree, Rollout


@dataclass(frozen=True)
class IMPALAConfig(OnPolicyConfig):
    """Structural settings of IMPALA."""

    num_envs: Count = 16
    rollout_length: Count = 5
    """Rows that each environment contributes to a gradient, and the largest number of rewards in a return; the paper's unroll
    length."""


class IMPALAHyperparams(NamedTuple):
    """Hyperparameters of IMPALA: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 2e-3
    gamma: shared.Gamma = 0.99
    vtrace_lambda: Unit = 1.0
    """λ of V-trace's returns; lower values put more weight on shorter returns. 1 in the paper."""
    rho_bar: Positive = 1.0
    """ρ̄, the largest weight of a row's temporal difference and of its gradient. If it is finite, the values are those of a policy
    between the one that acted and the current one."""
    c_bar: Positive = 1.0
    """c̄, the largest factor of a row in the corrections passed back from later rows; lower values reduce variance. At most ρ̄ in
    the paper."""
    ent_coef: shared.EntCoef = 0.01
    vf_coef: shared.VfCoef = 0.5
    max_grad_norm: shared.MaxGradNorm = 0.5
    total_steps: shared.TotalSteps = 0.0


def impala_loss(
    model: Model, config: IMPALAConfig, hp: IMPALAHyperparams, params: PyTree, rollout: Rollout, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """−E[ρ·log π(a | s)·(r + γ·v' − V(s))] + vf_coef·½ E[(v − V(s))²] − ent_coef·E[H] (Espeholt et al. 2018, section 4.2), as
    means over the valid rows of all devices.

    v are the V-trace targets, v' is that of the next row, and ρ = min(ρ̄, π/μ), where μ is the policy that acted. All are computed
    from the current parameters, and no gradient flows through them.
    """
    output = model.unroll(params, rollout.carry, rollout.inputs)[1]
    policy, values = jax.lax.stop_gradient((jax.tree.map(lambda x: x[:-1], output.policy), output.value))
    log_rho = jnp.where(rollout.valid, policy.log_prob(rollout.action) - rollout.extras["log_prob"], 0.0)
    rows = (rollout.reward, *discounts(rollout, hp.gamma, hp.vtrace_lambda), values[:-1], values[1:], log_rho, rollout.valid)
    target, advantage = vtrace(*rows, hp.rho_bar, hp.c_bar)
    rho = jnp.minimum(jnp.exp(log_rho), hp.rho_bar)
    weight = with_intrinsic(rollout, advantage, rho)
    return policy_gradient_loss(output, rollout, weight, target, rollout.valid, hp, axis_name, rho=rho, approx_kl=-log_rho)


@with_keywords_of(on_policy_keywords)
def make_impala(env: EnvLike, **keywords: Any) -> Agent:
    """IMPALA's learner (Espeholt et al. 2018): an actor-critic with V-trace and one gradient per rollout, for Discrete,
    MultiDiscrete and Box actions. An older policy may have collected the rollout. The paper's optimiser is
    ``jaxrl.optimize.clipped_rmsprop``."""
    prepared = prepare_actor_critic(make_impala, env, IMPALAConfig, IMPALAHyperparams, keywords)
    return one_gradient(prepared, impala_loss, tolerates_lag=True)

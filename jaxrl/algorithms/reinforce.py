"""REINFORCE (Williams 1992): the policy gradient with the returns of whole episodes, with or without a learnt baseline.

Reads top to bottom: settings, loss, builder. Acting, the gradient and the terms of the loss are in
``jaxrl.algorithms.common.on_policy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.on_policy import OnPolicyConfig, one_gradient, policy_gradient_loss, prepare_actor_critic
from jaxrl.builder.keywords import on_policy_keywords, with_keywords_of
from jaxrl.intrinsic.part import with_intrinsic
from jaxrl.optimize.gradients import valid_mean
from jaxrl.optimize.minibatches import standardized
from jaxrl.returns import discounts, episode_completed, lambda_returns
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, NonNegative, refuse_schedules, refuse_unused
from jaxrl.types import Agent, Array, EnvLike, Model, PyTree, Rollout


@dataclass(frozen=True)
class REINFORCEConfig(OnPolicyConfig):
    """Structural settings of REINFORCE."""

    num_envs: Count = 16
    rollout_length: Count = 512
    """Rows that each environment contributes to a gradient. Choose several episodes: one that does not end within the rollout
    adds nothing to the gradient."""
    baseline: bool = True
    """Subtract a learnt value from the returns. At a time limit, returns bootstrap from the value of the observation reached, or
    from 0 without a baseline."""
    normalize_advantages: bool = True
    """Scale returns minus the baseline to mean 0 and standard deviation 1 within each rollout."""


class REINFORCEHyperparams(NamedTuple):
    """Hyperparameters of REINFORCE: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-2
    gamma: shared.Gamma = 0.99
    ent_coef: shared.EntCoef = 0.0
    vf_coef: NonNegative = 0.5
    """Weight of the baseline's loss."""
    max_grad_norm: shared.MaxGradNorm = 0.5
    total_steps: shared.TotalSteps = 0.0


def reinforce_loss(
    model: Model, config: REINFORCEConfig, hp: REINFORCEHyperparams, params: PyTree, rollout: Rollout, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """−E[log π(a | s)·(G − b(s))] + vf_coef·½ E[(G − b(s))²] − ent_coef·E[H] (Williams 1992, section 6, with a baseline
    b that depends on the observation, and the sum G of the rewards from the row onwards), as means over the rows of all devices
    whose episode ends within the rollout. No gradient flows through G or, in the first term, b."""
    output = model.unroll(params, rollout.carry, rollout.inputs)[1]
    if not config.baseline:
        output = output._replace(value=jnp.zeros_like(output.value))
    values = jax.lax.stop_gradient(output.value)
    returns = lambda_returns(rollout.reward, *discounts(rollout, hp.gamma), values[1:], rollout.valid)
    known = episode_completed(rollout)
    weight = with_intrinsic(rollout, returns - values[:-1])
    if config.normalize_advantages:
        weight = standardized(weight, known, axis_name)
    total, metrics = policy_gradient_loss(output, rollout, weight, returns, known, hp, axis_name)
    if not config.baseline:  # there is no value to evaluate
        del metrics["losses/value_loss"], metrics["losses/explained_variance"]
    return total, metrics | {"charts/finished_rows": valid_mean(rollout.valid, axis_name)(known.astype(jnp.float32))}


@with_keywords_of(on_policy_keywords)
def make_reinforce(env: EnvLike, **keywords: Any) -> Agent:
    """REINFORCE (Williams 1992) with one gradient per rollout, from the returns of the episodes that end in it, for Discrete,
    MultiDiscrete and Box actions. The model's value is the baseline."""
    prepared = prepare_actor_critic(make_reinforce, env, REINFORCEConfig, REINFORCEHyperparams, keywords)
    if not prepared.setup.config.baseline:
        why = "with baseline=False: leave it out"
        refuse_unused(prepared.hyperparams, REINFORCEHyperparams(), ("vf_coef",), why)
        refuse_schedules(prepared.setup.schedules, ("vf_coef",), why)
    return one_gradient(prepared, reinforce_loss)

"""Advantage actor-critic (Mnih et al. 2016) with synchronous environments, memoryless or recurrent, discrete or continuous.

Reads top to bottom: settings, loss, builder. Acting, the gradient and the terms of the loss are in
``jaxrl.algorithms.common.on_policy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from jaxrl.algorithms.common.on_policy import OnPolicyConfig, one_gradient, policy_gradient_loss, prepare_actor_critic
from jaxrl.algorithms.common.teams import counterfactual
from jaxrl.builder.keywords import on_policy_keywords, with_keywords_of
from jaxrl.intrinsic.part import with_intrinsic
from jaxrl.optimize.minibatches import standardized
from jaxrl.returns import discounts, gae
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, Unit, added
from jaxrl.types import Agent, Array, EnvLike, Model, PyTree, Rollout


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Structural settings of A2C."""

    num_envs: Count = 16
    rollout_length: Count = 8
    """Rows that each environment contributes to a gradient, and the largest number of rewards in a return."""
    normalize_advantages: bool = False
    """Scale advantages to mean 0 and standard deviation 1 within each rollout."""
    counterfactual: bool = added(False)
    """With several agents and Discrete actions: a critic of joint actions, and counterfactual advantages (COMA, Foerster et al.
    2018)."""

    def network(self, default: Any) -> Any:
        return counterfactual.network if self.counterfactual else default

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        if self.counterfactual and self.normalize_advantages:
            raise ValueError("counterfactual=True and normalize_advantages=True are mutually exclusive: leave one out")


class A2CHyperparams(NamedTuple):
    """Hyperparameters of A2C: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 3e-3
    gamma: shared.Gamma = 0.99
    gae_lambda: Unit = 1.0
    """λ of generalised advantage estimation; 1 sums all rewards up to the rollout's end, as the paper's n-step returns do."""
    ent_coef: shared.EntCoef = 0.01
    vf_coef: shared.VfCoef = 0.5
    max_grad_norm: shared.MaxGradNorm = 0.5
    total_steps: shared.TotalSteps = 0.0


def a2c_loss(
    model: Model, config: A2CConfig, hp: A2CHyperparams, params: PyTree, rollout: Rollout, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """−E[log π(a | s)·A] + vf_coef·½ E[(G − V(s))²] − ent_coef·E[H] (Mnih et al. 2016, section 4 and algorithm S3), as means over
    the valid rows of all devices. A and G = A + V are computed from the current parameters; no gradient flows through them."""
    output = model.unroll(params, rollout.carry, rollout.inputs)[1]
    values = jax.lax.stop_gradient(output.value)
    advantage = gae(rollout.reward, *discounts(rollout, hp.gamma, hp.gae_lambda), values[:-1], values[1:], rollout.valid)
    weight = with_intrinsic(rollout, advantage)
    if config.normalize_advantages:
        weight = standardized(weight, rollout.valid, axis_name)
    return policy_gradient_loss(output, rollout, weight, advantage + values[:-1], rollout.valid, hp, axis_name)


@with_keywords_of(on_policy_keywords)
def make_a2c(env: EnvLike, **keywords: Any) -> Agent:
    """Advantage actor-critic (Mnih et al. 2016) with synchronous environments and one gradient per rollout, for Discrete,
    MultiDiscrete and Box actions. The paper's optimiser is ``jaxrl.optimize.clipped_rmsprop``."""
    if keywords.get("counterfactual"):
        return one_gradient(*counterfactual.prepare_counterfactual(make_a2c, env, A2CConfig, A2CHyperparams, keywords))
    prepared = prepare_actor_critic(make_a2c, env, A2CConfig, A2CHyperparams, keywords)
    return one_gradient(prepared, a2c_loss)

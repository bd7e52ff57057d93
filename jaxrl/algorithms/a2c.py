"""Advantage actor-critic (Mnih et al. 2016) with synchronous environments, memoryless or recurrent, discrete or continuous.

Reads top to bottom: settings, loss, builder. Acting, the gradient and the terms of the loss are in
``jaxrl.algorithms.common.on_policy``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from jaxrl.algorithms.common.on_policy import OnPolicyConfig, one_gradient, policy_gradient_loss, prepare_actor_critic
from jaxrl.builder.components import ModelArguments, ModelFn
from jaxrl.intrinsic.part import Intrinsic, IntrinsicFn, with_intrinsic
from jaxrl.optimize import Optimizer
from jaxrl.optimize.gradients import LossFn
from jaxrl.optimize.minibatches import standardized
from jaxrl.optimize.schedules import Schedule
from jaxrl.returns import discounts, gae
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.settings.validation import Count, LearningRate, NonNegative, Positive, TotalSteps, Unit
from jaxrl.types import Agent, Array, EnvLike, Model, PyTree, Rollout


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Structural settings of A2C."""

    num_envs: Count = 16
    rollout_length: Count = 8
    """Rows that each environment contributes to a gradient, and the largest number of rewards in a return."""
    normalize_advantages: bool = False
    """Scale advantages to mean 0 and standard deviation 1 within each rollout."""


class A2CHyperparams(NamedTuple):
    """Hyperparameters of A2C: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: LearningRate = 3e-3
    gamma: Unit = 0.99
    """Discount per step."""
    gae_lambda: Unit = 1.0
    """λ of generalised advantage estimation; 1 sums all rewards up to the rollout's end, as the paper's n-step returns do."""
    ent_coef: NonNegative = 0.01
    """Weight of the entropy bonus."""
    vf_coef: NonNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Positive = 0.5
    """Clip the gradient to this global norm."""
    total_steps: TotalSteps = 0.0


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


@suggest_arguments
def make_a2c(
    env: EnvLike,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    extra_losses: Sequence[LossFn] | LossFn = (),
    intrinsic: Intrinsic | IntrinsicFn | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Advantage actor-critic (Mnih et al. 2016) with synchronous environments and one gradient per rollout, for Discrete,
    MultiDiscrete and Box actions.

    Args:
      env: an id ("CartPole-v1", "envpool:CartPole-v1", "my_module:make_my_env"), an Env, a HostEnv or a Gymnasium class.
      model: arguments of ``jaxrl.models.actor_critic``, such as ``{"core": "gru"}``; or a Model whose outputs are
        ``ActorCriticOutput``, or a function of (observation_space, action_space) that returns one. Default: two MLPs of 2×64,
        tanh, or convolutions for images.
      optimizer: hyperparams -> optax transformation, or a transformation itself; default: clipped Adam. The paper's RMSProp is
        ``jaxrl.optimize.clipped_rmsprop``.
      schedules: hyperparameter name -> function of the iteration (warm-up included) that returns a factor on it.
      extra_losses: one function or several, (params, rollout of ``normalized_rollout``) -> (loss to add, scalars to log).
      intrinsic: an intrinsic reward, such as ``jaxrl.intrinsic.rnd``.
      axis_name: name of the device axis that ``step`` runs under.
      settings: fields of ``A2CConfig`` and ``A2CHyperparams``.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, model or action space.
      ValueError: sizes that do not fit together, hyperparameters out of range.
    """
    parts = {
        "model": model,
        "optimizer": optimizer,
        "schedules": schedules,
        "extra_losses": extra_losses,
        "intrinsic": intrinsic,
        "axis_name": axis_name,
    }
    prepared = prepare_actor_critic(make_a2c, env, A2CConfig, A2CHyperparams, settings, parts)
    return one_gradient(prepared, a2c_loss)

"""REINFORCE (Williams 1992): the policy gradient with the returns of whole episodes, with or without a learnt baseline.

Reads top to bottom: settings, loss, builder. Acting, the gradient and the terms of the loss are in
``jaxrl.algorithms.common.on_policy``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.on_policy import OnPolicyConfig, one_gradient, policy_gradient_loss, prepare_actor_critic
from jaxrl.builder.components import ModelArguments, ModelFn
from jaxrl.intrinsic.part import Intrinsic, IntrinsicFn, with_intrinsic
from jaxrl.optimize import Optimizer
from jaxrl.optimize.gradients import LossFn, valid_mean
from jaxrl.optimize.minibatches import standardized
from jaxrl.optimize.schedules import Schedule
from jaxrl.returns import discounts, episode_completed, lambda_returns
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.settings.validation import Count, LearningRate, NonNegative, Positive, TotalSteps, Unit
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

    learning_rate: LearningRate = 1e-2
    gamma: Unit = 0.99
    """Discount per step."""
    ent_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    vf_coef: NonNegative = 0.5
    """Weight of the baseline's loss."""
    max_grad_norm: Positive = 0.5
    """Clip the gradient to this global norm."""
    total_steps: TotalSteps = 0.0


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


@suggest_arguments
def make_reinforce(
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
    """REINFORCE (Williams 1992) with one gradient per rollout, from the returns of the episodes that end in it, for Discrete,
    MultiDiscrete and Box actions.

    Args:
      env: an id ("CartPole-v1", "envpool:CartPole-v1", "my_module:make_my_env"), an Env, a HostEnv or a Gymnasium class.
      model: arguments of ``jaxrl.models.actor_critic``, such as ``{"core": "gru"}``; or a Model whose outputs are
        ``ActorCriticOutput``, or a function of (observation_space, action_space) that returns one. Default: two MLPs of 2×64,
        tanh, or convolutions for images. Its value is the baseline.
      optimizer: hyperparams -> optax transformation, or a transformation itself; default: clipped Adam.
      schedules: hyperparameter name -> function of the iteration (warm-up included) that returns a factor on it.
      extra_losses: one function or several, (params, rollout of ``normalized_rollout``) -> (loss to add, scalars to log).
      intrinsic: an intrinsic reward, such as ``jaxrl.intrinsic.rnd``.
      axis_name: name of the device axis that ``step`` runs under.
      settings: fields of ``REINFORCEConfig`` and ``REINFORCEHyperparams``.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, model or action space.
      ValueError: sizes that do not fit together, hyperparameters out of range or without effect.
    """
    parts = {
        "model": model,
        "optimizer": optimizer,
        "schedules": schedules,
        "extra_losses": extra_losses,
        "intrinsic": intrinsic,
        "axis_name": axis_name,
    }
    prepared = prepare_actor_critic(make_reinforce, env, REINFORCEConfig, REINFORCEHyperparams, settings, parts)
    if not prepared.setup.config.baseline and (schedules or {}).keys() & {"vf_coef"} | settings.keys() & {"vf_coef"}:
        raise ValueError("vf_coef has no effect with baseline=False: leave it out")
    return one_gradient(prepared, reinforce_loss)

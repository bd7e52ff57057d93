"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018): the minimum of two critics, smoothed targets, and a
policy that is updated less often than the critics.

Reads top to bottom: settings, target, builder. Code shared with DDPG, including the update, is in
``jaxrl.algorithms.common.deterministic_policy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl.algorithms.common.critic_ensemble import ActorCriticPair, ActorCriticSetup, CriticBatch
from jaxrl.algorithms.common.deterministic_policy import DeterministicConfig, build, target_value
from jaxrl.builder.components import ModelArguments, ModelFn
from jaxrl.optimize import Optimizer
from jaxrl.optimize.schedules import Schedule
from jaxrl.replay import ReplayFn
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.settings.validation import Count, LearningRate, NonNegative, Positive, PositiveUnit, TotalSteps, Unit
from jaxrl.types import Agent, Array, EnvLike, Model


@dataclass(frozen=True)
class TD3Config(DeterministicConfig):
    """Structural settings of TD3."""

    policy_delay: Count = 2
    """Updates of the critics per update of the policy and the target networks."""


class TD3Hyperparams(NamedTuple):
    """Hyperparameters of TD3: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: LearningRate = 1e-3
    actor_learning_rate: LearningRate = 1e-3
    """Learning rate of the policy."""
    gamma: Unit = 0.99
    """Discount per step."""
    tau: PositiveUnit = 0.005
    """Step of the target networks towards the networks at each update of the policy, as a fraction."""
    exploration_noise: NonNegative = 0.1
    """Standard deviation of the noise on actions in [−1, 1]; with noise="ou", of the noise added to the process at each row."""
    ou_theta: PositiveUnit = 0.15
    """Fraction by which an Ornstein–Uhlenbeck process decays at each row; 1: independent noise."""
    target_noise: NonNegative = 0.2
    """Standard deviation of the noise on the target policy's actions in [−1, 1]."""
    target_noise_clip: NonNegative = 0.5
    """Clip the target policy's noise to ± this value."""
    max_grad_norm: Positive = 1_000.0
    """Clip the policy's gradient and the critics' joint gradient, each to this global norm."""
    adam_eps: Positive = 1e-8
    """Adam's ε."""
    total_steps: TotalSteps = 0.0


def target(setup: ActorCriticSetup[TD3Config], hp: TD3Hyperparams, targets: ActorCriticPair, update: CriticBatch) -> Array:
    """y = r + γ·(1 − terminated)·min Q⁻(s′, clip(π⁻(s′) + clip(ε, −c, c), −1, 1)), ε ~ N(0, σ²) (Fujimoto et al. 2018, eq. 10 and
    14); f32[N]."""
    noise = jnp.clip(hp.target_noise * update.noise[0], -hp.target_noise_clip, hp.target_noise_clip)
    action = jnp.clip(setup.model.apply(targets.actor, (), update.batch.next_inputs)[1] + noise, -1.0, 1.0)
    return target_value(setup, targets, action, update)


@suggest_arguments
def make_td3(
    env: EnvLike,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    critic: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    replay: ReplayFn | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018), for bounded Box actions.

    Args:
      env: an id ("Pendulum-v1", "envpool:HalfCheetah-v4", "my_module:make_my_env"), an Env, a HostEnv or a Gymnasium class.
      model: the policy: arguments of ``jaxrl.models.deterministic_policy``, such as ``{"hidden_sizes": (64, 64)}``, which also
        apply to the critics if ``critic`` is not given; or a memoryless Model whose outputs are actions f32[..., d] in [−1, 1];
        or a function of (observation_space, action_space) that returns one. Default: an MLP of 2×256, ReLU, for vectors.
      critic: each critic: arguments of ``jaxrl.models.action_value``; or a memoryless Model with the same inputs and outputs; or
        a function of both spaces that returns one. Default: as the policy.
      optimizer: hyperparams -> optax transformation, or a transformation itself, for policy and critics; default: clipped Adam.
      replay: a ``ReplayFn``, as in ``make_dqn``, such as ``prioritised_replay``; default: ``uniform_replay``.
      schedules: hyperparameter name -> function of the iteration (warm-up included) that returns a factor on it.
      axis_name: name of the device axis that ``step`` runs under.
      settings: fields of ``TD3Config`` and ``TD3Hyperparams``.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, model or action space.
      ValueError: sizes that do not fit together, hyperparameters out of range, a Box without bounds.
    """
    parts = {"model": model, "critic": critic, "optimizer": optimizer, "replay": replay, "schedules": schedules}
    return build(make_td3, env, TD3Config, TD3Hyperparams, settings, target, **parts, axis_name=axis_name)

"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018): the minimum of two critics, smoothed targets, and a
policy that is updated less often than the critics.

Reads top to bottom: settings, target, builder. Code shared with DDPG, including the update, is in
``jaxrl.algorithms.common.deterministic_policy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.algorithms.common.deterministic_policy import DeterministicConfig, build, target_value
from jaxrl.algorithms.common.offline.policy_cloning import Cloning, ReBRAC
from jaxrl.builder.keywords import actor_critic_replay_keywords, with_keywords_of
from jaxrl.rollout.outputs import outputs_of
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, NonNegative, Positive, PositiveUnit, added
from jaxrl.types import Agent, Array, EnvLike


@dataclass(frozen=True)
class TD3Config(DeterministicConfig):
    """Structural settings of TD3."""

    policy_delay: Count = 2
    """Updates of the critics per update of the policy and the target networks."""
    cloning: Cloning | ReBRAC | None = added(None)
    """For offline learning: a term that keeps the policy near the actions of the data."""

    @property
    def reads_next_action(self) -> bool:
        return isinstance(self.cloning, ReBRAC) or super().reads_next_action


class TD3Hyperparams(NamedTuple):
    """Hyperparameters of TD3: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    actor_learning_rate: shared.ActorLearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 0.005
    """Step of the target networks towards the networks at each update of the policy, as a fraction."""
    exploration_noise: shared.ExplorationNoise = 0.1
    ou_theta: PositiveUnit = 0.15
    """``OU.theta``."""
    target_noise: NonNegative = 0.2
    """Standard deviation of the noise on the target policy's actions in [−1, 1]."""
    target_noise_clip: NonNegative = 0.5
    """Clip the target policy's noise to ± this value."""
    cloning_alpha: Positive = 2.5
    """``Cloning.alpha``."""
    rebrac_actor_weight: NonNegative = 0.01
    """``ReBRAC.actor_weight``."""
    rebrac_critic_weight: NonNegative = 0.01
    """``ReBRAC.critic_weight``."""
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    """Clip the policy's gradient and the critics' joint gradient, each to this global norm."""
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


def target(setup: ActorCriticSetup[TD3Config], hp: TD3Hyperparams, targets: ActorCriticPair, update: CriticBatch) -> Array:
    """y = r + γ·(1 − terminated)·min Q⁻(s′, a′), a′ = clip(π⁻(s′) + clip(ε, −c, c), −1, 1), ε ~ N(0, σ²) (Fujimoto et al. 2018,
    eq. 10 and 14); f32[N]. With ``ReBRAC``, β₂·‖a′ − â′‖² is subtracted from the value, where â′ is the next action of the data
    (Tarasov et al. 2023, eq. 3); at the last observation of an episode that was cut off there is none."""
    noise = jnp.clip(hp.target_noise * update.noise[0], -hp.target_noise_clip, hp.target_noise_clip)
    action = jnp.clip(outputs_of(setup.model, targets.actor, update.batch.next_inputs, of_policy=True) + noise, -1.0, 1.0)
    if not isinstance(setup.config.cloning, ReBRAC):
        return target_value(setup, targets, action, update)
    distance = jnp.where(update.batch.next_valid, jnp.square(action - update.batch.next_action).sum(-1), 0.0)
    return target_value(setup, targets, action, update, hp.rebrac_critic_weight * distance)


@with_keywords_of(actor_critic_replay_keywords)
def make_td3(env: EnvLike, **keywords: Any) -> Agent:
    """Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018), for bounded Box actions."""
    return build(make_td3, env, TD3Config, TD3Hyperparams, keywords, target)

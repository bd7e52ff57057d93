"""Deep deterministic policy gradient (Lillicrap et al. 2016): one critic, and a policy that maximises it.

Reads top to bottom: settings, target, builder. Code shared with TD3, including the update, is in
``jaxrl.algorithms.common.deterministic_policy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from gymnasium import spaces

from jaxrl.algorithms.common.critics.distributional import Atoms
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup, Ensemble
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.algorithms.common.deterministic_policy import DeterministicConfig, build, policy_actions, target_value
from jaxrl.algorithms.common.gumbel_softmax import GumbelSoftmax
from jaxrl.builder.keywords import actor_critic_replay_keywords, with_keywords_of
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import PositiveUnit, added
from jaxrl.types import Agent, Array, EnvLike


@dataclass(frozen=True)
class DDPGConfig(DeterministicConfig):
    """Structural settings of DDPG."""

    critics: Ensemble | Atoms = Ensemble(size=1)
    """The critics. The policy maximises the first; targets use the minimum over all."""
    relaxation: GumbelSoftmax = added(GumbelSoftmax())
    """How Discrete actions get a gradient."""


class DDPGHyperparams(NamedTuple):
    """Hyperparameters of DDPG: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    actor_learning_rate: shared.ActorLearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 0.005
    """Step of the target networks towards the networks at each update of the policy, as a fraction."""
    exploration_noise: shared.ExplorationNoise = 0.1
    ou_theta: PositiveUnit = 0.15
    """``OU.theta``."""
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    """Clip the policy's gradient and the critics' joint gradient, each to this global norm."""
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


def target(setup: ActorCriticSetup[DDPGConfig], hp: DDPGHyperparams, targets: ActorCriticPair, update: CriticBatch) -> Array:
    """y = r + γ·(1 − terminated)·Q⁻(s′, π⁻(s′)) (Lillicrap et al. 2016, eq. 5; with ``joint_actions``, Lowe et al. 2017, eq. 7);
    f32[N]."""
    action, _ = policy_actions(setup, targets.actor, update.batch.next_inputs, jax.random.fold_in(update.key, 4))
    return target_value(setup, targets, action, update)


@with_keywords_of(actor_critic_replay_keywords)
def make_ddpg(env: EnvLike, **keywords: Any) -> Agent:
    """Deep deterministic policy gradient (Lillicrap et al. 2016), for bounded Box actions, and Discrete ones by relaxed samples
    (Jang et al. 2017)."""
    return build(make_ddpg, env, DDPGConfig, DDPGHyperparams, keywords, target, (spaces.Box, spaces.Discrete))

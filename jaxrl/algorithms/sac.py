"""Soft actor-critic for Box actions (Haarnoja et al. 2018, 2019) and Discrete actions (Christodoulou 2019).

Reads top to bottom: settings, state, acting, losses, learning, builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from jaxrl.algorithms.common import soft_policy
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup, action_values
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.algorithms.common.off_policy import prepare_off_policy
from jaxrl.algorithms.common.off_policy_networks import check_policy
from jaxrl.algorithms.common.offline.conservative import CQL, LagrangeCQL, Penalty
from jaxrl.algorithms.common.offline.conservative_updates import (
    actor_loss,
    adapted,
    add_penalty,
    check_conservative,
    draw_updates,
    penalty,
    values_of_data,
)
from jaxrl.algorithms.common.optimistic_exploration import policy
from jaxrl.algorithms.common.sequence_batches import targets_of
from jaxrl.algorithms.common.soft_policy import SoftPolicyConfig, act, check_soft_policy, init_fields, soft_value
from jaxrl.builder.keywords import actor_critic_replay_keywords, with_keywords_of
from jaxrl.builder.sequence_config import RecurrentConfig
from jaxrl.optimize.learner import Learner
from jaxrl.rollout.outputs import outputs_of
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import NonNegative, Positive, Range, Unit, added
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, PyTree


@dataclass(frozen=True)
class SACConfig(SoftPolicyConfig, RecurrentConfig):
    """Structural settings of SAC."""

    conservative: CQL | LagrangeCQL | None = added(None)
    """Conservative Q-learning: lower the values of actions that are not in the data, for offline learning."""

    @property
    def soft_targets(self) -> bool:
        """True if targets include the policy's entropy."""
        return self.conservative is None or self.conservative.backup_entropy


class SACHyperparams(NamedTuple):
    """Hyperparameters of SAC: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    actor_learning_rate: shared.ActorLearningRate = 1e-3
    temperature_learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 0.005
    """Step of the target critics towards the critics at each update, as a fraction."""
    # Fields of options, like temperature_learning_rate:
    temperature: Positive = 1.0
    box_entropy: NonNegative = 1.0
    discrete_entropy: Unit = 0.3
    optimism_beta: NonNegative = 4.66
    optimism_kl: NonNegative = 23.53
    conservative_weight: NonNegative = 5.0
    conservative_threshold: Annotated[float, Range()] = 10.0
    conservative_learning_rate: shared.LearningRate = 1e-3
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    """Clip the policy's gradient and the critics' joint gradient, each to this global norm."""
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


class SACState(Learner):
    """Learner state of SAC. ``opt_state`` holds the states of the networks' optimisers, and of the temperature's."""

    target_params: ActorCriticPair
    """Target critics; the policy has no target network."""
    log_temperature: Array
    replay: Any
    multiplier: PyTree = ()
    """State of the weight of ``LagrangeCQL``; () without it."""


def init(setup: ActorCriticSetup[SACConfig], key: Key, hyperparams: SACHyperparams) -> SACState:
    fields, conservative = init_fields(setup, key, hyperparams), setup.config.conservative
    target_params = ActorCriticPair((), jax.tree.map(jnp.copy, fields["params"].critic))
    return SACState(**fields, target_params=target_params, multiplier=conservative.init(hyperparams) if conservative else ())


# ---------------------------------------------------------------------------------------------------------------------- losses


def target(
    setup: ActorCriticSetup[SACConfig], actor: PyTree, target_critic: PyTree, temperature: Array, update: CriticBatch
) -> Array:
    """Compute the critics' target y = r + γ·(1 − terminated)·V⁻(s′).

    The value is that of the minimum over the ``chosen`` target critics, f32[N] (Haarnoja et al. 2018, eq. 8; Chen et al. 2021,
    algorithm 1). With quantiles, there is one target for each quantile that is not dropped, f32[N, M] (Kuznetsov et al. 2020,
    eq. 9).
    """
    key = jax.random.fold_in(update.key, 0)
    every = lambda inputs, action: action_values(setup, target_critic, inputs, action, key)  # noqa: E731
    values = lambda *arguments: setup.config.critics.pessimistic(every(*arguments), update.chosen)  # noqa: E731
    output = outputs_of(setup.model, actor, update.batch.next_inputs, of_policy=True)
    temperature = temperature if setup.config.soft_targets else jnp.zeros(())
    return targets_of(update.batch, soft_value(output, values, update.batch.next_inputs, update.noise[0], temperature)[0])


def critic_loss(
    setup: ActorCriticSetup[SACConfig], critic: PyTree, target: Array, update: CriticBatch, term: Penalty | None = None
) -> tuple[Array, dict[str, Array]]:
    """Sum over critics of ½·(Q(s, a) − y)² (Haarnoja et al. 2018, eq. 7), or of the ``quantile_loss``, with the conservative
    ``term`` if there is one."""
    values, gap = values_of_data(setup, critic, update, term)
    plain = setup.config.critics.loss(values, target, update.batch, setup.axis_name)
    return add_penalty(setup, update.batch, term, gap, *plain)


# ----------------------------------------------------------------------------------------------------------------------- learn


def learn(setup: ActorCriticSetup[SACConfig], learner: SACState) -> tuple[SACState, Metrics]:
    def critic_update(hp: Any, step: Any, policy: PyTree, temperature: Array, carry: Any, update: CriticBatch) -> Any:
        critics, (target_params, multiplier) = carry
        y = target(setup, policy, target_params, temperature, update)
        term = penalty(setup, hp, multiplier, policy, update)
        critics, metrics = step(lambda critic: critic_loss(setup, critic, y, update, term), critics)
        target_params = optax.incremental_update(critics.params, target_params, hp.tau)
        return (critics, (target_params, adapted(setup, hp, multiplier, metrics))), metrics

    others = learner.target_params.critic, learner.multiplier
    learner, (target_params, multiplier), metrics = soft_policy.learn(
        critic_update, setup, learner, others, draw_updates, actor_loss
    )
    return learner._replace(target_params=ActorCriticPair((), target_params), multiplier=multiplier), metrics


def make_algorithm(setup: ActorCriticSetup[SACConfig]) -> Algorithm:
    """Return SAC as an ``Algorithm``, bound to spaces but not to an environment."""
    transferable_fields = ("params", "target_params", "log_temperature", "multiplier", "statistics")
    return setup.algorithm(init=init, policy=policy, act=act, learn=learn, transferable_fields=transferable_fields)


@with_keywords_of(actor_critic_replay_keywords)
def make_sac(env: EnvLike, **keywords: Any) -> Agent:
    """Soft actor-critic for bounded Box actions (Haarnoja et al. 2018, 2019) and Discrete actions (Christodoulou 2019).

    Args:
      model: the policy: arguments of ``jaxrl.models.policy_network``, such as ``{"hidden_sizes": (64, 64)}``, which also apply to
        the critics if ``critic`` is not given, and ``{"core": "gru"}``, with which both have memory and learn from sequences; or
        a Model whose outputs are a ``TanhNormal`` in [−1, 1], or a ``Categorical`` for Discrete actions; or a function of
        (observation_space, action_space) that returns one. Default: an MLP of 2×256, ReLU, for vectors.
    """
    kinds = (spaces.Box, spaces.Discrete)
    prepared, setup = prepare_off_policy(make_sac, env, SACConfig, SACHyperparams, keywords, kinds, memory=True)
    check_policy(keywords.get("model"), prepared.output, setup.action_space)
    check_soft_policy(setup)
    check_conservative(setup)
    return prepared.bind(make_algorithm(setup))

"""CrossQ (Bhatt et al. 2024): soft actor-critic without target networks, whose networks have batch renormalisation.

Reads top to bottom: settings, state, loss, learning, builder. Code shared with SAC is in
``jaxrl.algorithms.common.soft_policy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common import soft_policy
from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup, trained_action_values
from jaxrl.algorithms.common.critics.network_state import STATISTICS
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.algorithms.common.off_policy import prepare_off_policy
from jaxrl.algorithms.common.off_policy_networks import check_policy
from jaxrl.algorithms.common.optimistic_exploration import policy
from jaxrl.algorithms.common.soft_policy import SoftPolicyConfig, act, check_soft_policy, init_fields, soft_value
from jaxrl.builder.keywords import actor_critic_replay_keywords, with_keywords_of
from jaxrl.optimize.learner import Learner
from jaxrl.replay.transitions import bootstrapped
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, NonNegative, Positive, Unit
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, PyTree


@dataclass(frozen=True)
class CrossQConfig(SoftPolicyConfig):
    """Structural settings of CrossQ."""

    rollout_length: Count = 12
    policy_delay: Count = 3
    """Updates of the critics per update of the policy (Fujimoto et al. 2018)."""

    def network(self, default: Any) -> Any:
        return partial(default, batch_renorm=True)

    def critic_network(self, default: Any) -> Any:
        return partial(default, batch_renorm=True, hidden_sizes=(1024, 1024))


class CrossQHyperparams(NamedTuple):
    """Hyperparameters of CrossQ: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    actor_learning_rate: shared.ActorLearningRate = 1e-3
    temperature_learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    # Fields of options, like temperature_learning_rate:
    temperature: Positive = 1.0
    box_entropy: NonNegative = 1.0
    discrete_entropy: Unit = 0.3
    optimism_beta: NonNegative = 4.66
    optimism_kl: NonNegative = 23.53
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    """Clip the policy's gradient and the critics' joint gradient, each to this global norm."""
    adam_b1: shared.AdamB1 = 0.5
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


class CrossQState(Learner):
    """Learner state of CrossQ. ``opt_state`` holds the states of the networks' optimisers, and of the temperature's;
    ``statistics`` those of the policy and of the critics."""

    log_temperature: Array
    replay: Any


def init(setup: ActorCriticSetup[CrossQConfig], key: Key, hyperparams: CrossQHyperparams) -> CrossQState:
    return CrossQState(**init_fields(setup, key, hyperparams))


# ------------------------------------------------------------------------------------------------------------------------ loss


def critic_loss(
    setup: ActorCriticSetup[CrossQConfig], critic: PyTree, actor: PyTree, temperature: Array, update: CriticBatch
) -> tuple[Array, dict[str, Any]]:
    """Sum over critics of ½·(Q(s, a) − y)², y = r + γ·(1 − terminated)·(min Q(s′, a′) − α·log π(a′ | s′)), a′ ~ π(· | s′), where
    one pass of the critics in training computes Q(s, a) and Q(s′, a′). y is a constant, but the moments of the batch are not
    (Bhatt et al. 2024, figure 3).

    Returns:
      The loss, and scalars to log with ``PRIORITIES`` and the critics' ``STATISTICS``.
    """
    batch, critics, noise = update.batch, setup.config.critics, update.noise[0]
    # What follows a termination may not be finite, and would enter the moments.
    next_inputs = zero_invalid(batch.next_inputs, batch.discount != 0)
    output = setup.model.apply(actor, (), next_inputs)[1]
    pairs = (batch.inputs, batch.action), (next_inputs, output.at(noise)[0])
    inputs, action = jax.tree.map(lambda *rows: jnp.concatenate(rows), *pairs)
    key, valid = jax.random.fold_in(update.key, 1), jnp.tile(batch.valid, 2)
    outputs, statistics = trained_action_values(setup, critic, inputs, action, valid, key)
    values, following = jnp.split(outputs, 2, axis=1)
    least = critics.pessimistic(jax.lax.stop_gradient(following), update.chosen)
    y = bootstrapped(batch, soft_value(output, lambda *_: least, next_inputs, noise, temperature)[0])
    loss, logged = critics.loss(values, y, batch, setup.axis_name)
    return loss, {**logged, STATISTICS: statistics}


# ----------------------------------------------------------------------------------------------------------------------- learn


def learn(setup: ActorCriticSetup[CrossQConfig], learner: CrossQState) -> tuple[CrossQState, Metrics]:
    def critic_update(hp: Any, step: Any, policy: PyTree, temperature: Array, carry: Any, update: CriticBatch) -> Any:
        critics, metrics = step(lambda critic: critic_loss(setup, critic, policy, temperature, update), carry[0])
        return (critics, ()), metrics

    learner, _, metrics = soft_policy.learn(critic_update, setup, learner)
    return learner, metrics


def make_algorithm(setup: ActorCriticSetup[CrossQConfig]) -> Algorithm:
    """Return CrossQ as an ``Algorithm``, bound to spaces but not to an environment."""
    transferable_fields = ("params", "statistics", "log_temperature")
    return setup.algorithm(init=init, policy=policy, act=act, learn=learn, transferable_fields=transferable_fields)


@with_keywords_of(actor_critic_replay_keywords)
def make_crossq(env: EnvLike, **keywords: Any) -> Agent:
    """CrossQ (Bhatt et al. 2024): soft actor-critic with batch renormalisation and without target networks, for bounded Box
    actions.

    Args:
      model: the policy: arguments of ``jaxrl.models.policy_network``, such as ``{"hidden_sizes": (64, 64)}``, which also apply to
        the critics if ``critic`` is not given; or a memoryless Model whose outputs are a ``TanhNormal`` in [−1, 1]; or a function
        of (observation_space, action_space) that returns one. Default: an MLP of 2×256, ReLU, for vectors, with
        ``batch_renorm``.
      critic: each critic, as ``model``: arguments of ``jaxrl.models.action_value``, a Model or a function. Default: an MLP of
        2×1024 with ``batch_renorm``.
    """
    kinds = (spaces.Box,)
    prepared, setup = prepare_off_policy(make_crossq, env, CrossQConfig, CrossQHyperparams, keywords, kinds, statistics=True)
    check_policy(keywords.get("model"), prepared.output, setup.action_space)
    check_soft_policy(setup)
    return prepared.bind(make_algorithm(setup))

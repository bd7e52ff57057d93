"""Shared parts of on-policy actor-critic algorithms: settings, builder, acting, normalised rollouts, policy gradient loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
from gymnasium import spaces

from jaxrl.algorithms.common.q_heads import HLGauss
from jaxrl.builder.config import RolloutConfig
from jaxrl.builder.keywords import split_keywords
from jaxrl.builder.networks import check_actor_critic
from jaxrl.builder.prepare import PreparedAgent, prepare
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.models import ActorCriticOutput, actor_critic
from jaxrl.optimize.gradients import add_losses, pmean, valid_mean, valid_means
from jaxrl.optimize.learner import Learner
from jaxrl.optimize.minibatches import explained_variance
from jaxrl.returns import bootstrap_mask
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.outputs import apply_model
from jaxrl.rollout.running_statistics import Statistics, init_statistics, normalize_inputs, scale_rewards, update_statistics
from jaxrl.settings.validation import Count, added
from jaxrl.types import Agent, Array, EnvLike, Key, Metrics, Model, Policy, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class OnPolicyConfig(RolloutConfig):
    """Structural settings of an on-policy algorithm, which may normalise observations and rewards."""

    normalize_observations: bool = False
    """Normalise observations with their running mean and standard deviation."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return, for learning only."""
    hold_noise: Count = added(1)
    """Rows of an episode that share one draw of noise, for Box actions; 1: one draw per row."""

    @property
    def warmup_iterations(self) -> int:
        """One with normalisation, for its statistics; otherwise none."""
        return int(self.normalize_observations or self.normalize_rewards)

    @property
    def num_values(self) -> int | None:
        """Number of values of the model, f32[..., num_values]; None: one, f32[...]."""
        return None

    def network(self, default: Any) -> Any:
        return default if self.num_values is None else partial(default, num_values=self.num_values)


C = TypeVar("C", bound=OnPolicyConfig)


@dataclass(frozen=True)
class ValueHeadConfig(OnPolicyConfig):
    """Structural settings of an on-policy algorithm whose value may be a histogram."""

    value_head: HLGauss | None = added(None)
    """Learn the value as the mean of a histogram, by cross-entropy; None: as a number, by its squared error."""

    @property
    def num_values(self) -> int | None:
        return None if self.value_head is None else self.value_head.num_bins

    def values(self, outputs: Array) -> Array:
        """Return the values f32[...] that the network's ``value`` stands for, before their normalisation is reversed."""
        return outputs if self.value_head is None else self.value_head.mean(outputs)

    def value_losses(self, outputs: Array, target: Array) -> Array:
        """Return the loss of the network's ``value``, f32[...]: ½·(V − G)², or the cross-entropy of the head."""
        return 0.5 * (outputs - target) ** 2 if self.value_head is None else self.value_head.cross_entropy(outputs, target)


LossOfRollout = Callable[[Model, Any, Any, PyTree, Rollout, str | None], tuple[Array, dict[str, Array]]]
"""(model, config, hyperparams, params, rollout of ``normalized_rollout``, axis_name) -> (loss, scalars to log)."""


def prepare_actor_critic(
    builder: Callable[..., Agent],
    env: EnvLike,
    config: type[C],
    hyperparams: type,
    keywords: Mapping[str, Any],
) -> PreparedAgent[C]:
    """Call ``prepare`` for Discrete, MultiDiscrete and Box actions and an actor-critic model, recurrent or not."""
    settings, parts = split_keywords(builder, keywords)
    kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)
    prepared = prepare(builder, env, config, hyperparams, settings, kinds, actor_critic, parts, memory=True)
    check_actor_critic(parts["model"], prepared.output, prepared.env.action_space, prepared.setup.config.num_values)
    return prepared


# ---------------------------------------------------------------------------------------------------- functions of an Algorithm


def init(setup: AlgorithmSetup[Any], key: Key, hyperparams: Any, *, values: bool = False) -> Learner:
    """Initialise the learner, with the statistics for normalisation, of ``values`` too if asked."""
    observations = setup.observation_space if setup.config.normalize_observations else None
    rewards = setup.config.num_envs if setup.config.normalize_rewards else None
    return setup.init_learner(key, hyperparams, init_statistics(observations, rewards, values=values))


def act(
    setup: AlgorithmSetup[Any], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Return actions drawn from the model's policy, or its mode. Extras hold their ``log_prob``, and unless actions are Discrete,
    the ``raw_action`` in the model's units."""
    carry, output = setup.model.apply(policy.params, carry, normalize_inputs(policy.statistics, inputs))
    drawn = setup.sample(output.policy, key, env_id) if explore else output.policy.mode()
    extras = {"log_prob": output.policy.log_prob(drawn)}
    if not isinstance(setup.action_space, spaces.Discrete):
        extras["raw_action"] = drawn
    return carry, setup.to_environment(drawn), extras


def observe(setup: AlgorithmSetup[Any], learner: Learner, rollout: Rollout) -> Learner:
    """Update the statistics with the rollout's valid rows."""
    return learner._replace(
        statistics=update_statistics(learner.statistics, rollout, setup.current(learner).gamma, setup.axis_name)
    )


# -------------------------------------------------------------------------------------------------------------------- learning


def drawn_actions(rollout: Rollout) -> Array:
    """Return the actions [T, B, ...] in the model's units, as ``act`` drew them."""
    return rollout.extras.get("raw_action", rollout.action)


def normalized_rollout(statistics: Statistics, rollout: Rollout) -> Rollout:
    """Normalise a rollout's observations and rewards, and replace its actions by those that were drawn.

    Numbers that are not finite are set to 0 on rows that enter no loss, to keep them out of gradients. Inputs of the row after a
    truncation are kept, because the return bootstraps from their value.
    """
    return rollout._replace(
        inputs=zero_invalid(normalize_inputs(statistics, rollout.inputs), bootstrap_mask(rollout)),
        action=zero_invalid(drawn_actions(rollout), rollout.valid),
        reward=scale_rewards(statistics, rollout.reward),
    )


def items_to_shuffle(rows: Any, carry: PyTree) -> Any:
    """Return rows [T, B] as the items of minibatches: rows [T · B], or with memory sequences [B, T] that begin with ``carry``.

    Args:
      rows: a NamedTuple of leaves [T, B, ...], with a field ``carry`` that is ().
    """
    if jax.tree.leaves(carry):
        return jax.tree.map(lambda x: x.swapaxes(0, 1), rows)._replace(carry=carry)
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)


def gradients(loss: LossOfRollout, setup: AlgorithmSetup[Any], policy: Policy, rollout: Rollout) -> tuple[PyTree, Metrics]:
    """Implement ``Algorithm.gradients`` for an algorithm with this loss."""
    rows = normalized_rollout(policy.statistics, rollout)

    def total(params: PyTree) -> tuple[Array, dict[str, Array]]:
        loss_and_metrics = loss(setup.model, setup.config, policy.hyperparams, params, rows, setup.axis_name)
        return add_losses(setup.extra_losses, params, rows, *loss_and_metrics)

    return setup.gradient(total, policy)


def loss_batch(learner: Any, rollout: Rollout) -> Rollout:
    """Return the batch that ``gradients`` passes to extra losses."""
    return normalized_rollout(learner.statistics, rollout)


def one_gradient(prepared: PreparedAgent[Any], loss: LossOfRollout, *, tolerates_lag: bool = False) -> Agent:
    """Build the ``Agent`` of an algorithm that acts as this module does and takes one gradient of ``loss`` per rollout."""
    functions: dict[str, Any] = {"init": init, "act": act, "observe": observe, "gradients": partial(gradients, loss)}
    algorithm = prepared.setup.algorithm(**functions, tolerates_lag=tolerates_lag)
    return prepared.bind(algorithm, batch=loss_batch)


def policy_gradient_loss(
    output: ActorCriticOutput,
    rollout: Rollout,
    weight: Array,
    target: Array,
    where: Array,
    hp: Any,
    axis_name: str | None,
    **others: Array,
) -> tuple[Array, dict[str, Array]]:
    """−E[weight · log π(a | s)] + vf_coef · ½ E[(target − V(s))²] − ent_coef · E[H(π(· | s))], over rows of all devices.

    Its gradient is the policy gradient (Sutton et al. 2000, theorem 1) if weights and targets are constants.

    Args:
      output: the model's outputs for the rollout of ``normalized_rollout``, [T + 1, B].
      rollout: from ``normalized_rollout``.
      weight: f32[T, B].
      target: f32[T, B].
      where: bool[T, B], the rows to use.
      hp: hyperparameters, with ``vf_coef`` and ``ent_coef``.
      others: further values f32[T, B]; their means are logged under these names.
    """
    policy, value = jax.tree.map(lambda x: x[:-1], (output.policy, output.value))
    policy_loss = -weight * policy.log_prob(rollout.action)
    value_loss, entropy = 0.5 * (value - target) ** 2, policy.entropy()
    logged = {"losses/policy_loss": policy_loss, "losses/value_loss": value_loss, "losses/entropy": entropy}
    logged |= {f"losses/{name}": x for name, x in others.items()}
    total = policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
    loss, metrics = valid_means(total, logged, where, axis_name)
    metrics["losses/explained_variance"] = explained_variance(target, target - value, where, axis_name)
    return loss, metrics


def mean_kl(model: Model, params: PyTree, batch: Any, num_parts: int, axis_name: str | None = None) -> Array:
    """Return the mean of KL(old ‖ new) over the valid rows of all devices, computed in parts to save memory.

    Args:
      batch: a NamedTuple of leaves [N, ...], with ``inputs``, ``carry``, ``valid`` and ``policy``, the old distribution.
      num_parts: number of parts; must divide N.
    """
    parts = jax.tree.map(lambda x: x.reshape((num_parts, -1, *x.shape[1:])), batch)
    kl = jax.lax.map(lambda part: part.policy.kl(apply_model(model, params, part.inputs, part.carry).policy), parts)
    return pmean(valid_mean(parts.valid, axis_name)(kl), axis_name)

"""Implicit Q-learning (Kostrikov et al. 2022) for Box and Discrete actions, and with other options AWAC (Nair et al. 2020) and
CRR (Wang et al. 2020): the policy clones the actions of the data, weighted by their advantage.

Reads top to bottom: settings, state, acting, losses, learning, builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.critics import delayed_updates
from jaxrl.algorithms.common.critics.delayed_updates import Losses
from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup, action_values, min_over_subset, td_loss
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.algorithms.common.off_policy import OffPolicyConfig, prepare_off_policy, sample_discrete
from jaxrl.algorithms.common.offline.advantage_weights import Binary, Expectile, Exponential, Sampled, expectile_loss
from jaxrl.algorithms.common.offline.datasets import reward_scale
from jaxrl.builder.keywords import actor_critic_replay_keywords, with_keywords_of
from jaxrl.builder.networks import check_actor_critic
from jaxrl.distributions import Categorical, Normal, TanhNormal, select_actions
from jaxrl.exploration.action_noise import normal_each, uniform_of
from jaxrl.models import actor_critic
from jaxrl.optimize.learner import TargetLearner
from jaxrl.optimize.schedules import remaining
from jaxrl.replay.transitions import bootstrapped
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import NonNegative, Positive, Unit
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, StepInput

LEAST_LOG_STD, MOST_LOG_STD = -5.0, 2.0
OF_TARGET, OF_ADVANTAGE = 3, 4
"""Random streams of an update's actions; the critics' networks have those before."""


@dataclass(frozen=True)
class IQLConfig(OffPolicyConfig):
    """Structural settings of IQL."""

    anneal: bool = False
    cosine: bool = True
    """Let ``actor_learning_rate``, which is the policy's and V's, fall to 0 at ``total_steps``, along half a cosine."""
    value: Expectile | Sampled = Expectile()
    """V(s), from which advantages are computed, and with ``Expectile`` targets."""
    weight: Exponential | Binary = Exponential()
    """Weight of an action of the data in the policy's loss."""
    normalize_observations: bool = True
    """With ``data``: normalise observations by their mean and standard deviation in the data."""
    scale_rewards: bool = True
    """With ``data``: scale rewards so that the returns of its episodes span 1,000."""

    @property
    def only_with_data(self) -> tuple[str, ...]:
        return (*super().only_with_data, "normalize_observations", "scale_rewards")

    def network(self, default: Any) -> Any:
        return partial(default, hidden_sizes=(256, 256), activation="relu")


class IQLHyperparams(NamedTuple):
    """Hyperparameters of IQL: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 3e-4
    actor_learning_rate: shared.ActorLearningRate = 3e-4
    """Step size for the policy and V."""
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 0.005
    """Step of the target critics towards the critics at each update, as a fraction."""
    # Fields of options:
    expectile: Unit = 0.7
    beta: NonNegative = 3.0
    weight_limit: Positive = 100.0
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    """Clip the gradient of policy and V and that of the critics, each to this global norm."""
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


# ---------------------------------------------------------------------------------------------------------------------- acting


def policy(setup: ActorCriticSetup[IQLConfig], learner: TargetLearner) -> Policy:
    """Return the policy. It acts at random until the first update, and so during the warm-up."""
    return Policy(learner.params._replace(critic=()), learner.statistics, setup.acts_at_random(learner), learner.version)


def outputs(setup: ActorCriticSetup[IQLConfig], actor: PyTree, inputs: StepInput) -> tuple[Any, Array]:
    """Return ``(π(· | s), V(s))``. The mean of a Normal is squashed into [−1, 1], and its samples are not."""
    output = setup.model.apply(actor, (), inputs)[1]
    if isinstance(found := output.policy, Normal):
        return Normal(jnp.tanh(found.mean), jnp.clip(found.log_std, LEAST_LOG_STD, MOST_LOG_STD)), output.value
    return found, output.value


def act(
    setup: ActorCriticSetup[Any], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    output, _ = outputs(setup, policy.params.actor, normalize_inputs(policy.statistics, inputs))
    if not explore:
        return carry, setup.to_environment(output.mode()), {}
    keys, at_random = fold_each(key, env_id), policy.exploration
    if isinstance(output, Categorical):
        return carry, sample_discrete(output, keys, at_random), {}
    noise = normal_each(keys, output.mean.shape[-1])
    drawn = at_noise(output, noise)
    return carry, setup.to_environment(jnp.where(at_random, uniform_of(noise), drawn)), {}


def at_noise(output: Normal | TanhNormal, noise: Array) -> Array:
    """Return the actions in [−1, 1] that standard normal noise draws."""
    if isinstance(output, TanhNormal):
        return output.at(noise)[0]
    return jnp.clip(output.mean + jnp.exp(output.log_std) * noise, -1.0, 1.0)


# ---------------------------------------------------------------------------------------------------------------------- losses


def values(setup: ActorCriticSetup[IQLConfig], critic: PyTree, inputs: StepInput, action: Array, key: Key) -> Array:
    """Return Q(s, a) of all critics, f32[num_critics, N]."""
    if isinstance(setup.action_space, spaces.Discrete):
        every = action_values(setup, critic, inputs, None, key)
        return select_actions(every, jnp.broadcast_to(action, every.shape[:-1]))
    return action_values(setup, critic, inputs, action, key)


def target(setup: ActorCriticSetup[IQLConfig], actor: PyTree, target_critic: PyTree, update: CriticBatch) -> Array:
    """y = r + γ·(1 − terminated)·V(s′) (Kostrikov et al. 2022, eq. 6), or with ``Sampled`` the least target critic's Q⁻(s′, a′)
    for an action of the policy; f32[N]."""
    output, value = outputs(setup, actor, update.batch.next_inputs)
    if isinstance(setup.config.value, Sampled):
        value = sampled_value(setup, output, target_critic, update.batch.next_inputs, update, 1, OF_TARGET)
    return bootstrapped(update.batch, value)


def sampled_value(
    setup: ActorCriticSetup[IQLConfig],
    output: Any,
    critic: PyTree,
    inputs: StepInput,
    update: CriticBatch,
    number: int,
    stream: int,
) -> Array:
    """Return the mean of the least critic's Q(s, a) over actions drawn from the policy, f32[N]."""

    def one(key: Key) -> Array:
        action = output.sample(key)
        if not isinstance(output, Categorical):
            action = jnp.clip(action, -1.0, 1.0)
        return min_over_subset(values(setup, critic, inputs, action, jax.random.fold_in(key, 1)), update.chosen)

    return jax.vmap(one)(jax.random.split(jax.random.fold_in(update.key, stream), number)).mean(0)


def critic_loss(
    setup: ActorCriticSetup[IQLConfig], critic: PyTree, target: Array, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """Sum over critics of ½·(Q(s, a) − y)²."""
    found = values(setup, critic, update.batch.inputs, update.batch.action, jax.random.fold_in(update.key, 1))
    return td_loss(found, target, update.batch, setup.axis_name)


def actor_loss(
    setup: ActorCriticSetup[IQLConfig], hp: IQLHyperparams, actor: PyTree, target_critic: PyTree, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """−E[w(A)·log π(a | s)], A = min Q⁻(s, a) − V(s) (Kostrikov et al. 2022, eq. 7), plus the expectile loss of V (eq. 5)."""
    config, batch, mean = setup.config, update.batch, setup.valid_mean(update.batch.valid)
    output, value = outputs(setup, actor, batch.inputs)
    found = values(setup, target_critic, batch.inputs, batch.action, jax.random.fold_in(update.key, 2))
    q = jax.lax.stop_gradient(min_over_subset(found, update.chosen))
    logged, value_loss = dict[str, Array](), jnp.zeros(())
    if isinstance(config.value, Expectile):
        value_loss = mean(expectile_loss(q - value, hp.expectile))
        logged["losses/value_loss"] = value_loss
    else:
        value = sampled_value(setup, output, target_critic, batch.inputs, update, config.value.number, OF_ADVANTAGE)
    advantage = q - jax.lax.stop_gradient(value)
    weight = config.weight.weights(advantage, hp)
    loss = -mean(weight * output.log_prob(batch.action))
    logged |= {"losses/actor_loss": loss, "losses/advantage": mean(advantage), "losses/weight": mean(weight)}
    return loss + value_loss, logged


# -------------------------------------------------------------------------------------------------------------------- learning


def learn(setup: ActorCriticSetup[IQLConfig], learner: TargetLearner) -> tuple[TargetLearner, Metrics]:
    hp = setup.current(learner)
    if setup.config.cosine:
        left = remaining(learner.version + setup.warmup_iterations, setup.steps_per_iteration, hp.total_steps)
        hp = hp._replace(actor_learning_rate=hp.actor_learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * (1 - left))))
    losses = Losses(
        target=lambda actor, targets, update: target(setup, actor, targets.critic, update),
        critic=partial(critic_loss, setup),
        actor=lambda actor, critic, targets, update: actor_loss(setup, hp, actor, targets.critic, update),
    )
    return delayed_updates.learn(setup, learner, hp, losses, reward_scale(setup) if setup.config.scale_rewards else 1.0)


def make_algorithm(setup: ActorCriticSetup[IQLConfig]) -> Algorithm:
    """Return IQL as an ``Algorithm``, bound to spaces but not to an environment."""
    transferable_fields = ("params", "target_params", "statistics")
    init = partial(delayed_updates.init, target_policy=False)
    return setup.algorithm(init=init, policy=policy, act=act, learn=learn, transferable_fields=transferable_fields)


@with_keywords_of(actor_critic_replay_keywords)
def make_iql(env: EnvLike, **keywords: Any) -> Agent:
    """Implicit Q-learning (Kostrikov et al. 2022) from a dataset or from replay, for bounded Box actions and Discrete actions.

    Args:
      model: policy and V: arguments of ``jaxrl.models.actor_critic``, such as ``{"hidden_sizes": (64, 64)}``; those that a critic
        takes also apply to the critics if ``critic`` is not given; or a memoryless Model whose outputs are ``ActorCriticOutput``;
        or a function of (observation_space, action_space) that returns one. Default: two MLPs of 2×256, ReLU, for vectors.
    """
    kinds = (spaces.Box, spaces.Discrete)
    prepared, setup = prepare_off_policy(make_iql, env, IQLConfig, IQLHyperparams, keywords, kinds, network=actor_critic)
    check_actor_critic(keywords.get("model"), prepared.output, setup.action_space)
    return prepared.bind(make_algorithm(setup))

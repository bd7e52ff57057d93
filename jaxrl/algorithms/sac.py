"""Soft actor-critic for Box actions (Haarnoja et al. 2018, 2019) and Discrete actions (Christodoulou 2019).

Reads top to bottom: settings, state, acting, losses, learning, builder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from jaxrl.algorithms.common.critic_ensemble import (
    ActorCriticPair,
    ActorCriticSetup,
    CriticBatch,
    Ensemble,
    action_values,
    draw_updates,
    learn_critics,
    networks,
)
from jaxrl.algorithms.common.off_policy import OffPolicyConfig, check_policy, init_networks, init_replay, prepare_off_policy
from jaxrl.algorithms.common.optimistic_exploration import Optimistic, optimistic, policy
from jaxrl.algorithms.common.quantile_critics import Quantiles
from jaxrl.builder.keywords import actor_critic_replay_keywords, with_keywords_of
from jaxrl.distributions import MASKED, Categorical, sample_each, select_actions
from jaxrl.exploration.action_noise import normal_each, uniform_of
from jaxrl.optimize.gradients import pmean, valid_mean
from jaxrl.optimize.learner import Learner
from jaxrl.replay.transitions import bootstrapped
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.rollout.collect import fold_each
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import Count, NonNegative, Positive, Unit, added, refuse_unused
from jaxrl.spaces.action_scaling import to_environment
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, StepInput


@option("learned")
class LearnedTemperature(Option):
    """Adapt the temperature so that the policy's entropy approaches a target (Haarnoja et al. 2019)."""

    initial: Positive = hyperparameter("temperature", 1.0)
    """α, the weight of the entropy in nats relative to rewards, at the start."""
    learning_rate: shared.LearningRate = hyperparameter("temperature_learning_rate", 1e-3)
    """Adam's step size for the logarithm of α."""
    box_entropy: NonNegative = hyperparameter("box_entropy", 1.0)
    """Box actions: the target entropy is −box_entropy nats per dimension, for actions in [−1, 1]."""
    discrete_entropy: Unit = hyperparameter("discrete_entropy", 0.3)
    """Discrete actions: the target entropy is this fraction of log n, for n actions."""


@option("fixed")
class FixedTemperature(Option):
    """Keep the temperature constant (Haarnoja et al. 2018)."""

    value: Positive = hyperparameter("temperature", 1.0)
    """α, the weight of the entropy in nats relative to rewards."""


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Structural settings of SAC."""

    critics: Ensemble | Quantiles = Ensemble()  # type: ignore[assignment] # wider than the family's
    """The critics, and how targets use them."""
    temperature: LearnedTemperature | FixedTemperature = LearnedTemperature()  # noqa: RUF009 - frozen
    """The weight of the entropy."""
    exploration: Optimistic | None = added(None)
    """Exploration that differs from sampling the policy."""
    actor_value: Literal["min", "mean"] = "min"
    """Value that the policy maximises: the minimum or the mean of the critics' values (Chen et al. 2021)."""
    hold_noise: Count = 1
    """Rows of an episode that share one draw of noise, including the random actions of the warm-up; 1: one draw per row."""

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        if self.exploration and self.critics.size < 2:
            raise ValueError(
                f"critics of size={self.critics.size} are too few for exploration=Optimistic(), which uses their disagreement: "
                "use 2 or more"
            )


class SACHyperparams(NamedTuple):
    """Hyperparameters of SAC: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    actor_learning_rate: shared.ActorLearningRate = 1e-3
    temperature_learning_rate: shared.LearningRate = 1e-3
    """``LearnedTemperature.learning_rate``."""
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 0.005
    """Step of the target critics towards the critics at each update, as a fraction."""
    temperature: Positive = 1.0
    """``LearnedTemperature.initial`` or ``FixedTemperature.value``."""
    box_entropy: NonNegative = 1.0
    """``LearnedTemperature.box_entropy``."""
    discrete_entropy: Unit = 0.3
    """``LearnedTemperature.discrete_entropy``."""
    optimism_beta: NonNegative = 4.66
    """``Optimistic.beta``."""
    optimism_kl: NonNegative = 23.53
    """``Optimistic.kl``."""
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


# ---------------------------------------------------------------------------------------------------------------------- acting


def init(setup: ActorCriticSetup[SACConfig], key: Key, hyperparams: SACHyperparams) -> SACState:
    network_key, learner_key = jax.random.split(key)
    params, opt_states = init_networks(setup, network_key, hyperparams)
    target = ActorCriticPair((), jax.tree.map(jnp.copy, params.critic))
    log_temperature = jnp.log(hyperparams.temperature)
    opt_state = (opt_states, optax.adam(hyperparams.temperature_learning_rate).init(log_temperature))
    version = jnp.zeros((), jnp.int32)
    rows = init_replay(setup)
    return SACState(params, opt_state, hyperparams, (), learner_key, version, target, log_temperature, rows)


def act(
    setup: ActorCriticSetup[SACConfig],
    policy: Policy,
    carry: PyTree,
    inputs: StepInput,
    env_id: Array,
    key: Key,
    *,
    explore: bool,
) -> tuple[PyTree, Array, dict[str, Array]]:
    output = setup.model.apply(policy.params.actor, (), inputs)[1]
    if not explore:
        return carry, to_environment(setup.action_space, output.mode()), {}
    keys, at_random = fold_each(key, env_id), policy.exploration
    if isinstance(output, Categorical):
        logits = jnp.where(at_random & (output.logits > 0.5 * MASKED), 0.0, output.logits)
        return carry, sample_each(Categorical(logits), keys), {}
    if setup.config.exploration is not None:
        at_random, output = policy.exploration.at_random, optimistic(setup, policy, output, inputs)
    noise = normal_each(keys, output.mean.shape[-1])
    return carry, to_environment(setup.action_space, jnp.where(at_random, uniform_of(noise), output.at(noise)[0])), {}


# ---------------------------------------------------------------------------------------------------------------------- losses


def soft_value(
    setup: ActorCriticSetup[SACConfig],
    actor: PyTree,
    values: Any,
    inputs: StepInput,
    noise: Array,
    temperature: Array,
) -> tuple[Array, Array]:
    """Return ``(V(s), entropy)``, f32[N] each: V = E[Q(s, a) − α·log π(a | s)] (Haarnoja et al. 2018, eq. 3).

    The expectation is exact for Discrete actions (Christodoulou 2019, eq. 10). For a Box it is estimated from one action, drawn
    with ``noise``.

    Args:
      values: for Discrete actions, (inputs, None) -> Q of all actions f32[N, n]. For a Box, (inputs, action) -> Q f32[N], or M
        values of each action, f32[N, M]; V is then f32[N, M].
    """
    output = setup.model.apply(actor, (), inputs)[1]
    if isinstance(output, Categorical):
        p, entropy = jax.nn.softmax(output.logits), output.entropy()
        return (p * values(inputs, None)).sum(-1) + temperature * entropy, entropy
    action, log_prob = output.at(noise)
    value = values(inputs, action)
    return value - expand_mask(temperature * log_prob, value), -log_prob


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
    return bootstrapped(update.batch, soft_value(setup, actor, values, update.batch.next_inputs, update.noise[0], temperature)[0])


def critic_loss(
    setup: ActorCriticSetup[SACConfig], critic: PyTree, target: Array, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """Sum over critics of ½·(Q(s, a) − y)² (Haarnoja et al. 2018, eq. 7), or of the ``quantile_loss``."""
    batch, discrete = update.batch, isinstance(setup.action_space, spaces.Discrete)
    values = action_values(setup, critic, batch.inputs, None if discrete else batch.action, jax.random.fold_in(update.key, 1))
    if discrete:
        values = select_actions(values, jnp.broadcast_to(batch.action, values.shape[:-1]))
    return setup.config.critics.loss(values, target, batch, setup.axis_name)


def actor_loss(
    setup: ActorCriticSetup[SACConfig], actor: PyTree, critic: PyTree, temperature: Array, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """E[α·log π(a | s) − Q(s, a)] (Haarnoja et al. 2018, eq. 12), where Q is the minimum or the mean of the critics."""
    key = jax.random.fold_in(update.key, 2)
    of_all = partial(jnp.min if setup.config.actor_value == "min" else jnp.mean, axis=0)
    every = lambda inputs, action: action_values(setup, critic, inputs, action, key)  # noqa: E731
    values = lambda *arguments: of_all(setup.config.critics.values(every(*arguments)))  # noqa: E731
    value, entropy = soft_value(setup, actor, values, update.batch.inputs, update.noise[1], temperature)
    mean = valid_mean(update.batch.valid, setup.axis_name)
    loss = -mean(value)
    return loss, {"losses/actor_loss": loss, "losses/entropy": mean(entropy)}


def temperature_gradient(log_temperature: Array, entropy: Array, target_entropy: Array | float) -> Array:
    """Gradient of E[−α·log π(a | s) − α·H̄] with respect to log α (Haarnoja et al. 2019, eq. 18)."""
    return jnp.exp(log_temperature) * (entropy - target_entropy)


def target_entropy(action_space: spaces.Space, hyperparams: SACHyperparams) -> Array | float:
    """Return the target entropy H̄ in nats."""
    if isinstance(action_space, spaces.Discrete):
        return hyperparams.discrete_entropy * math.log(int(action_space.n))
    assert isinstance(action_space, spaces.Box)
    return -hyperparams.box_entropy * math.prod(action_space.shape)


# ----------------------------------------------------------------------------------------------------------------------- learn


def learn(setup: ActorCriticSetup[SACConfig], learner: SACState) -> tuple[SACState, Metrics]:
    hp, is_learned = setup.current(learner), isinstance(setup.config.temperature, LearnedTemperature)
    actor, critic = networks(setup, learner.params, hp)
    adam, goal = optax.adam(hp.temperature_learning_rate), target_entropy(setup.action_space, hp)

    def critic_update(policy: PyTree, temperature: Array, carry: Any, update: CriticBatch) -> Any:
        params, target_params, opt_state = carry
        y = target(setup, policy, target_params, temperature, update)
        loss = lambda params: critic_loss(setup, params, y, update)  # noqa: E731
        params, opt_state, metrics = critic.descend(loss, params, opt_state, setup.axis_name)
        return (params, optax.incremental_update(params, target_params, hp.tau), opt_state), metrics

    def group(carry: Any, updates: CriticBatch) -> Any:
        """Update the critics ``policy_delay`` times, then the policy and the temperature once."""
        params, opt_state, critics, (log_temperature, adam_state) = carry
        temperature = jnp.exp(log_temperature) if is_learned else hp.temperature
        critics, metrics, last = learn_critics(
            setup, learner, hp.gamma, partial(critic_update, params, temperature), critics, updates
        )
        loss = lambda params: actor_loss(setup, params, critics[0][0], temperature, last)  # noqa: E731
        params, opt_state, logged = actor.descend(loss, params, opt_state, setup.axis_name)
        logged["losses/actor_grad_norm"] = logged.pop("losses/grad_norm")
        if is_learned:
            slope = temperature_gradient(log_temperature, pmean(logged["losses/entropy"], setup.axis_name), goal)
            step, adam_state = adam.update(slope, adam_state)
            log_temperature += step
        logged["losses/temperature"] = temperature
        return (params, opt_state, critics, (log_temperature, adam_state)), metrics | logged

    (actor_state, critic_state), adam_state = learner.opt_state
    critics = ((learner.params.critic, learner.target_params.critic, critic_state), learner.replay)
    start = (learner.params.actor, actor_state, critics, (learner.log_temperature, adam_state))
    end, metrics = jax.lax.scan(group, start, draw_updates(setup, learner, hp.gamma))
    actor_params, actor_state, ((critic_params, target_params, critic_state), replay), (log_temperature, adam_state) = end
    return setup.updated(
        learner,
        hp,
        metrics,
        params=ActorCriticPair(actor_params, critic_params),
        target_params=ActorCriticPair((), target_params),
        opt_state=(ActorCriticPair(actor_state, critic_state), adam_state),
        log_temperature=log_temperature,
        replay=replay,
    )


def check_settings(setup: ActorCriticSetup[SACConfig]) -> None:
    """Raise ValueError for settings that have no effect with this action space or temperature."""
    config, space = setup.config, setup.action_space
    is_discrete = isinstance(space, spaces.Discrete)
    if is_discrete and config.exploration is not None:
        raise ValueError(f"exploration={config.exploration.name!r} is for Box actions, and the environment has {space}")
    if isinstance(config.temperature, LearnedTemperature):
        other = "box_entropy" if is_discrete else "discrete_entropy"
        refuse_unused(config.temperature, LearnedTemperature(), (other,), f"on {space}")
        if "temperature" in setup.schedules:
            raise ValueError(
                "schedules['temperature'] has no effect: LearnedTemperature starts at it. Use FixedTemperature(), or a schedule "
                "for box_entropy or discrete_entropy"
            )


def make_algorithm(setup: ActorCriticSetup[SACConfig]) -> Algorithm:
    """Return SAC as an ``Algorithm``, bound to spaces but not to an environment."""
    transferable_fields = ("params", "target_params", "log_temperature", "statistics")
    return setup.algorithm(init=init, policy=policy, act=act, learn=learn, transferable_fields=transferable_fields)


@with_keywords_of(actor_critic_replay_keywords)
def make_sac(env: EnvLike, **keywords: Any) -> Agent:
    """Soft actor-critic for bounded Box actions (Haarnoja et al. 2018, 2019) and Discrete actions (Christodoulou 2019).

    Args:
      model: the policy: arguments of ``jaxrl.models.policy_network``, such as ``{"hidden_sizes": (64, 64)}``, which also apply to
        the critics if ``critic`` is not given; or a memoryless Model whose outputs are a ``TanhNormal`` in [−1, 1], or a
        ``Categorical`` for Discrete actions; or a function of (observation_space, action_space) that returns one. Default: an MLP
        of 2×256, ReLU, for vectors.
    """
    prepared, setup = prepare_off_policy(make_sac, env, SACConfig, SACHyperparams, keywords, (spaces.Box, spaces.Discrete))
    check_policy(keywords.get("model"), prepared.output, setup.action_space)
    check_settings(setup)
    return prepared.bind(make_algorithm(setup))

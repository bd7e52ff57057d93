"""Shared by algorithms with a soft policy, which maximises value and entropy: acting, soft values, the policy's loss, and the
temperature, which weighs the entropy (Haarnoja et al. 2018, 2019; Christodoulou 2019).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.critic_ensemble import ActorCriticSetup, CriticBatch, action_values
from jaxrl.algorithms.common.optimistic_exploration import optimistic
from jaxrl.distributions import MASKED, Categorical, sample_each
from jaxrl.exploration.action_noise import normal_each, uniform_of
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.rollout.collect import fold_each
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import NonNegative, Positive, Unit, refuse_unused
from jaxrl.types import Array, Key, Policy, PyTree, StepInput


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


# ---------------------------------------------------------------------------------------------------------------------- acting


def act(
    setup: ActorCriticSetup[Any],
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
        return carry, setup.to_environment(output.mode()), {}
    keys, at_random = fold_each(key, env_id), policy.exploration
    if isinstance(output, Categorical):
        logits = jnp.where(at_random & (output.logits > 0.5 * MASKED), 0.0, output.logits)
        return carry, sample_each(Categorical(logits), keys), {}
    if setup.config.exploration is not None:
        at_random, output = policy.exploration.at_random, optimistic(setup, policy, output, inputs)
    noise = normal_each(keys, output.mean.shape[-1])
    return carry, setup.to_environment(jnp.where(at_random, uniform_of(noise), output.at(noise)[0])), {}


# ---------------------------------------------------------------------------------------------------------------------- losses


def soft_value(
    setup: ActorCriticSetup[Any],
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


def actor_loss(
    setup: ActorCriticSetup[Any], actor: PyTree, critic: PyTree, temperature: Array, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """E[α·log π(a | s) − Q(s, a)] (Haarnoja et al. 2018, eq. 12), where Q is the minimum or the mean of the critics."""
    key = jax.random.fold_in(update.key, 2)
    of_all = partial(jnp.min if setup.config.actor_value == "min" else jnp.mean, axis=0)
    every = lambda inputs, action: action_values(setup, critic, inputs, action, key)  # noqa: E731
    values = lambda *arguments: of_all(setup.config.critics.values(every(*arguments)))  # noqa: E731
    value, entropy = soft_value(setup, actor, values, update.batch.inputs, update.noise[1], temperature)
    mean = setup.valid_mean(update.batch.valid)
    loss = -mean(value)
    return loss, {"losses/actor_loss": loss, "losses/entropy": mean(entropy)}


# ----------------------------------------------------------------------------------------------------------------- temperature


def temperature_gradient(log_temperature: Array, entropy: Array, target_entropy: Array | float) -> Array:
    """Gradient of E[−α·log π(a | s) − α·H̄] with respect to log α (Haarnoja et al. 2019, eq. 18)."""
    return jnp.exp(log_temperature) * (entropy - target_entropy)


def target_entropy(action_space: spaces.Space, hyperparams: Any) -> Array | float:
    """Return the target entropy H̄ in nats."""
    if isinstance(action_space, spaces.Discrete):
        return hyperparams.discrete_entropy * math.log(int(action_space.n))
    assert isinstance(action_space, spaces.Box)
    return -hyperparams.box_entropy * math.prod(action_space.shape)


def check_soft_policy(setup: ActorCriticSetup[Any]) -> None:
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

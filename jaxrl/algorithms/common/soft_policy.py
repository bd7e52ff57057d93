"""Shared by algorithms with a soft policy, which maximises value and entropy: settings, initial state, acting, soft values, the
policy's loss and the loop over updates (Haarnoja et al. 2018, 2019; Christodoulou 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from jaxrl.algorithms.common.critics.distributional import Quantiles
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup, Ensemble, action_values
from jaxrl.algorithms.common.critics.network_state import (
    STATISTICS,
    NetworkState,
    network_states,
    network_variables,
    networks,
    train_step,
)
from jaxrl.algorithms.common.critics.updates import CriticBatch, draw_updates, learn_critics
from jaxrl.algorithms.common.off_policy import OffPolicyConfig, init_networks, init_replay, sample_discrete
from jaxrl.algorithms.common.optimistic_exploration import Optimistic, optimistic
from jaxrl.algorithms.common.temperature import FixedTemperature, LearnedTemperature, target_entropy, temperature_gradient
from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.exploration.action_noise import normal_each, uniform_of
from jaxrl.optimize.gradients import pmean
from jaxrl.rollout.autoreset import expand_mask
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.outputs import train_model
from jaxrl.settings.validation import Count, added, refuse_schedules, refuse_unused
from jaxrl.types import Array, Key, Metrics, Policy, PyTree, StepInput


@dataclass(frozen=True)
class SoftPolicyConfig(OffPolicyConfig):
    """Structural settings of an algorithm with a soft policy."""

    critics: Ensemble | Quantiles = Ensemble()  # type: ignore[assignment] # wider than the family's
    """The critics, and how targets use them."""
    temperature: LearnedTemperature | FixedTemperature = LearnedTemperature()
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


def init_fields(setup: ActorCriticSetup[Any], key: Key, hyperparams: Any) -> dict[str, Any]:
    """Return the fields of an initial learner state, without target networks. ``opt_state`` holds the states of the networks'
    optimisers, and of the temperature's."""
    network_key, learner_key = jax.random.split(key)
    params, statistics, opt_states = init_networks(setup, network_key, hyperparams)
    log_temperature = jnp.log(hyperparams.temperature)
    return {
        "params": params,
        "opt_state": (opt_states, optax.adam(hyperparams.temperature_learning_rate).init(log_temperature)),
        "hyperparams": hyperparams,
        "statistics": statistics,
        "key": learner_key,
        "version": jnp.zeros((), jnp.int32),
        "log_temperature": log_temperature,
        "replay": init_replay(setup),
    }


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
    carry, output = setup.model.apply(network_variables(policy).actor, carry, inputs)
    if not explore:
        return carry, setup.to_environment(output.mode()), {}
    keys, at_random = fold_each(key, env_id), policy.exploration
    if isinstance(output, Categorical):
        return carry, sample_discrete(output, keys, at_random), {}
    if setup.config.exploration is not None:
        at_random, output = policy.exploration.at_random, optimistic(setup, policy, output, inputs)
    noise = normal_each(keys, output.mean.shape[-1])
    return carry, setup.to_environment(jnp.where(at_random, uniform_of(noise), output.at(noise)[0])), {}


# ---------------------------------------------------------------------------------------------------------------------- losses


def soft_value(
    output: Categorical | TanhNormal, values: Any, inputs: StepInput, noise: Array, temperature: Array
) -> tuple[Array, Array]:
    """Return ``(V(s), entropy)``, f32[N] each: V = E[Q(s, a) − α·log π(a | s)] (Haarnoja et al. 2018, eq. 3).

    The expectation is exact for Discrete actions (Christodoulou 2019, eq. 10). For a Box it is estimated from one action, drawn
    with ``noise``.

    Args:
      output: the policy's, at these inputs.
      values: for Discrete actions, (inputs, None) -> Q of all actions f32[N, n]. For a Box, (inputs, action) -> Q f32[N], or M
        values of each action, f32[N, M]; V is then f32[N, M].
    """
    if isinstance(output, Categorical):
        p, entropy = jax.nn.softmax(output.logits), output.entropy()
        return (p * values(inputs, None)).sum(-1) + temperature * entropy, entropy
    action, log_prob = output.at(noise)
    value = values(inputs, action)
    return value - expand_mask(temperature * log_prob, value), -log_prob


def actor_loss(
    setup: ActorCriticSetup[Any], actor: PyTree, critic: PyTree, temperature: Array, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """E[α·log π(a | s) − Q(s, a)] (Haarnoja et al. 2018, eq. 12), where Q is the minimum or the mean of the critics.

    Returns:
      The loss, and scalars to log with the policy's ``STATISTICS``.
    """
    batch, key = update.batch, jax.random.fold_in(update.key, 2)
    output, statistics = train_model(setup.model, actor, batch.inputs, batch.valid, axis_name=setup.axis_name)
    of_all = partial(jnp.min if setup.config.actor_value == "min" else jnp.mean, axis=0)
    every = lambda inputs, action: action_values(setup, critic, inputs, action, key)  # noqa: E731
    values = lambda *arguments: of_all(setup.config.critics.values(every(*arguments)))  # noqa: E731
    noise = update.noise[1, : len(batch.valid)]  # with n-step returns of sequences, there are more next observations
    value, entropy = soft_value(output, values, batch.inputs, noise, temperature)
    mean = setup.valid_mean(batch.valid)
    loss = -mean(value)
    return loss, {"losses/actor_loss": loss, "losses/entropy": mean(entropy), STATISTICS: statistics}


def check_soft_policy(setup: ActorCriticSetup[Any]) -> None:
    """Raise ValueError for settings that have no effect with this action space or temperature."""
    config, space = setup.config, setup.action_space
    is_discrete = isinstance(space, spaces.Discrete)
    if config.has_memory and config.exploration is not None:
        raise ValueError(f"exploration={config.exploration} needs networks without memory: leave it out, or the core")
    if is_discrete and config.exploration is not None:
        raise ValueError(f"exploration={config.exploration.name!r} is for Box actions, and the environment has {space}")
    if isinstance(config.temperature, LearnedTemperature):
        other = "box_entropy" if is_discrete else "discrete_entropy"
        refuse_unused(config.temperature, LearnedTemperature(), (other,), f"on {space}")
        refuse_schedules(setup.schedules, (other,), f"on {space}")
        use = "use FixedTemperature(), or a schedule for box_entropy or discrete_entropy"
        refuse_schedules(setup.schedules, ("temperature",), f"with LearnedTemperature, which starts at it: {use}")


# ----------------------------------------------------------------------------------------------------------------------- learn

CriticUpdate = Callable[
    [Any, Any, PyTree, Array, tuple[NetworkState, PyTree], CriticBatch], tuple[tuple[NetworkState, PyTree], dict[str, Array]]
]
"""One update of the critics: (hyperparams, step, policy, temperature, (critics, others), inputs) -> ((critics, others), metrics
with ``PRIORITIES``). ``step`` is ``train_step`` with the critics' optimiser, ``policy`` the first argument of the model's
``apply``."""


def learn(
    critic_update: CriticUpdate,
    setup: ActorCriticSetup[Any],
    learner: Any,
    others: PyTree = (),
    draw: Callable[[ActorCriticSetup[Any], Any, Array], Any] = draw_updates,
    policy_loss: Callable[..., tuple[Array, dict[str, Array]]] = actor_loss,
) -> tuple[Any, PyTree, Metrics]:
    """Run an iteration's updates, in groups of ``policy_delay`` updates of the critics followed by one of the policy and of the
    temperature.

    Args:
      others: what ``critic_update`` carries in addition to the critics, such as target networks.
      draw: function in place of ``draw_updates``.
      policy_loss: function in place of ``actor_loss``.

    Returns:
      The learner, the last ``others``, and the metrics.
    """
    hp, is_learned = setup.current(learner), isinstance(setup.config.temperature, LearnedTemperature)
    actor_step, critic_step = (partial(train_step, net) for net in networks(setup, learner.params, hp))
    adam, goal = optax.adam(hp.temperature_learning_rate), target_entropy(setup.action_space, hp)

    def group(carry: Any, updates: CriticBatch) -> Any:
        actor, critics, (log_temperature, adam_state) = carry
        temperature = jnp.exp(log_temperature) if is_learned else hp.temperature
        update_once = partial(critic_update, hp, critic_step, actor.variables, temperature)
        critics, metrics, last = learn_critics(setup, learner, hp.gamma, update_once, critics, updates)
        critic = critics[0][0].variables
        actor, logged = actor_step(lambda actor: policy_loss(setup, actor, critic, temperature, last), actor)
        logged["losses/actor_grad_norm"] = logged.pop("losses/grad_norm")
        if is_learned:
            slope = temperature_gradient(log_temperature, pmean(logged["losses/entropy"], setup.axis_name), goal)
            step, adam_state = adam.update(slope, adam_state)
            log_temperature += step
        logged["losses/temperature"] = temperature
        return (actor, critics, (log_temperature, adam_state)), metrics | logged

    opt_states, adam_state = learner.opt_state
    actor, critics = network_states(learner, opt_states)
    start = (actor, ((critics, others), learner.replay), (learner.log_temperature, adam_state))
    end, metrics = jax.lax.scan(group, start, draw(setup, learner, hp.gamma))
    actor, ((critics, others), replay), (log_temperature, adam_state) = end
    params, statistics, opt_states = (ActorCriticPair(*parts) for parts in zip(actor, critics, strict=True))
    learner, metrics = setup.updated(
        learner,
        hp,
        metrics,
        params=params,
        statistics=learner.statistics and statistics,
        opt_state=(opt_states, adam_state),
        log_temperature=log_temperature,
        replay=replay,
    )
    return learner, others, metrics

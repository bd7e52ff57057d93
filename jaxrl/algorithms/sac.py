"""Soft actor-critic for Box actions (Haarnoja et al. 2018, 2019) and Discrete actions (Christodoulou 2019).

Reads top to bottom: settings, state, acting, losses, learning, builder.
"""

from __future__ import annotations

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
from jaxrl.algorithms.common.optimistic_exploration import Optimistic, policy
from jaxrl.algorithms.common.quantile_critics import Quantiles
from jaxrl.algorithms.common.soft_policy import (
    FixedTemperature,
    LearnedTemperature,
    act,
    actor_loss,
    check_soft_policy,
    soft_value,
    target_entropy,
    temperature_gradient,
)
from jaxrl.builder.keywords import actor_critic_replay_keywords, with_keywords_of
from jaxrl.distributions import select_actions
from jaxrl.optimize.gradients import pmean
from jaxrl.optimize.learner import Learner
from jaxrl.replay.transitions import bootstrapped
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, NonNegative, Positive, Unit, added
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, PyTree


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Structural settings of SAC."""

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


# ----------------------------------------------------------------------------------------------------------------------- learn


def learn(setup: ActorCriticSetup[SACConfig], learner: SACState) -> tuple[SACState, Metrics]:
    hp, is_learned = setup.current(learner), isinstance(setup.config.temperature, LearnedTemperature)
    actor, critic = networks(setup, learner.params, hp)
    adam, goal = optax.adam(hp.temperature_learning_rate), target_entropy(setup.action_space, hp)

    def critic_update(policy: PyTree, temperature: Array, carry: Any, update: CriticBatch) -> Any:
        params, target_params, opt_state = carry
        y = target(setup, policy, target_params, temperature, update)
        loss = lambda params: critic_loss(setup, params, y, update)  # noqa: E731
        params, opt_state, metrics = critic.single_step(loss, params, opt_state)
        return (params, optax.incremental_update(params, target_params, hp.tau), opt_state), metrics

    def group(carry: Any, updates: CriticBatch) -> Any:
        """Update the critics ``policy_delay`` times, then the policy and the temperature once."""
        params, opt_state, critics, (log_temperature, adam_state) = carry
        temperature = jnp.exp(log_temperature) if is_learned else hp.temperature
        critics, metrics, last = learn_critics(
            setup, learner, hp.gamma, partial(critic_update, params, temperature), critics, updates
        )
        loss = lambda params: actor_loss(setup, params, critics[0][0], temperature, last)  # noqa: E731
        params, opt_state, logged = actor.single_step(loss, params, opt_state)
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
    check_soft_policy(setup)
    return prepared.bind(make_algorithm(setup))

"""Maximum a posteriori policy optimisation (MPO, Abdolmaleki et al. 2018a), for Box actions with the separate trust regions of
mean and deviation of Abdolmaleki et al. 2018b, and for Discrete actions.

Reads top to bottom: settings, state, targets, losses, learning, builder. The improvement of the policy is in
``jaxrl.algorithms.common.policy_improvement``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup, action_values, min_over_subset, td_loss
from jaxrl.algorithms.common.critics.network_state import networks
from jaxrl.algorithms.common.critics.updates import CriticBatch, draw_updates, learn_critics
from jaxrl.algorithms.common.off_policy import OffPolicyConfig, init_networks, init_replay, policy, prepare_off_policy
from jaxrl.algorithms.common.off_policy_networks import check_policy
from jaxrl.algorithms.common.offline.conservative_updates import values_of_data
from jaxrl.algorithms.common.policy_improvement import (
    Duals,
    divergences,
    improved,
    init_duals,
    kl_bounds,
    likelihood,
    refuse_without_effect,
    temperature_loss,
    trust_region,
)
from jaxrl.algorithms.common.soft_policy import act
from jaxrl.builder.keywords import actor_critic_replay_keywords, with_keywords_of
from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.exploration.action_noise import standard_normal
from jaxrl.optimize.gradients import mean_gradient
from jaxrl.optimize.learner import TargetLearner
from jaxrl.replay.transitions import bootstrapped
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, Positive
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, PyTree, StepInput

OF_TARGET, OF_POLICY = 5, 6
"""Random streams of an update's actions; those of the networks that value them are the next two."""


@dataclass(frozen=True)
class MPOConfig(OffPolicyConfig):
    """Structural settings of MPO."""

    samples: Count = 20
    """Box actions drawn from the target policy for each observation. Sums over Discrete actions are exact."""
    hold_noise: Count = 1
    """Rows of an episode that share one draw of noise, including the random actions of the warm-up; 1: one draw per row."""

    exploration = None
    """Actions are drawn from the policy."""


class MPOHyperparams(NamedTuple):
    """Hyperparameters of MPO: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    actor_learning_rate: shared.ActorLearningRate = 1e-3
    dual_learning_rate: shared.LearningRate = 1e-2
    """Adam's step size for the temperature and the multipliers."""
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 0.005
    """Step of the target networks towards the networks at each update of the policy, as a fraction."""
    temperature: Positive = 10.0
    """η at the start."""
    improvement_kl: Positive = 0.1
    """ε: KL divergence of the improved policy from the target policy, in nats."""
    mean_kl: Positive = 2.5e-3
    """Box actions: bound on the KL divergence by a change of the mean, in nats per dimension."""
    deviation_kl: Positive = 1e-5
    """Box actions: bound on the KL divergence by a change of the standard deviation, in nats per dimension."""
    discrete_kl: Positive = 1e-3
    """Discrete actions: bound on the KL divergence of the target policy from the policy, in nats."""
    max_grad_norm: shared.MaxGradNorm = 40.0
    """Clip the policy's gradient and the critics' joint gradient, each to this global norm."""
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


class MPOState(TargetLearner):
    """Learner state of MPO. ``opt_state`` holds the states of the networks' optimisers, and of that of the duals."""

    duals: Duals


MULTIPLIERS = {"mean": 10.0, "deviation": 1000.0, "discrete": 10.0}
"""Multipliers at the start."""


def init(setup: ActorCriticSetup[MPOConfig], key: Key, hyperparams: MPOHyperparams) -> MPOState:
    network_key, learner_key = jax.random.split(key)
    params, _, opt_states = init_networks(setup, network_key, hyperparams)
    duals = init_duals(setup.action_space, hyperparams.temperature, MULTIPLIERS)
    opt_state = (opt_states, optax.adam(hyperparams.dual_learning_rate).init(duals))
    fields = (hyperparams, (), learner_key, jnp.zeros((), jnp.int32), jax.tree.map(jnp.copy, params), init_replay(setup))
    return MPOState(params, opt_state, *fields, duals)


# --------------------------------------------------------------------------------------------------- values of a policy's actions


def sampled_values(
    setup: ActorCriticSetup[MPOConfig], targets: ActorCriticPair, inputs: StepInput, update: CriticBatch, stream: int
) -> tuple[Categorical | TanhNormal, Array, Array]:
    """Return the target policy's output, its actions and their values by the least target critic.

    Returns:
      (output, noise f32[samples, N, d] that draws the actions, values f32[samples, N]); for Discrete actions the values are
      f32[n, N], of all of them, and the noise is ().
    """
    output = setup.model.apply(targets.actor, (), inputs)[1]
    key, network_key = (jax.random.fold_in(update.key, stream + i) for i in (0, 2))
    if isinstance(output, Categorical):
        values = action_values(setup, targets.critic, inputs, None, network_key)
        return output, cast(Array, ()), min_over_subset(values, update.chosen).T
    number, rows = setup.config.samples, output.mean.shape[0]
    noise = standard_normal(key, (number, *output.mean.shape))
    action = jnp.tanh(output.mean + jnp.exp(output.log_std) * noise)
    every = jax.tree.map(lambda x: jnp.tile(x, (number, *[1] * (x.ndim - 1))), inputs)
    values = action_values(setup, targets.critic, every, action.reshape(number * rows, -1), network_key)
    return output, noise, min_over_subset(values, update.chosen).reshape(number, rows)


def target(setup: ActorCriticSetup[MPOConfig], targets: ActorCriticPair, update: CriticBatch) -> Array:
    """y = r + γ·(1 − terminated)·E[Q⁻(s′, a′)], a′ ~ π⁻(· | s′); f32[N]."""
    output, _, values = sampled_values(setup, targets, update.batch.next_inputs, update, OF_TARGET)
    weights = jax.nn.softmax(output.logits).T if isinstance(output, Categorical) else 1.0 / len(values)
    return bootstrapped(update.batch, (weights * values).sum(0))


# ---------------------------------------------------------------------------------------------------------------------- losses


def critic_loss(
    setup: ActorCriticSetup[MPOConfig], critic: PyTree, target: Array, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """Sum over critics of ½·(Q(s, a) − y)²."""
    return td_loss(values_of_data(setup, critic, update, None)[0], target, update.batch, setup.axis_name)


def policy_losses(
    setup: ActorCriticSetup[MPOConfig], hp: MPOHyperparams, targets: ActorCriticPair, update: CriticBatch
) -> tuple[Any, Any]:
    """Return the losses of the policy and of the duals on a batch, as functions.

    The policy minimises −E[Σ q(a)·log π(a | s)] + α·KL(π⁻ ‖ π), and a multiplier α·(bound − KL) (Abdolmaleki et al. 2018a, eq. 10
    to 12).
    """
    batch, bounds = update.batch, kl_bounds(setup.action_space, hp)
    mean = setup.valid_mean(batch.valid)
    old, noise, values = jax.lax.stop_gradient(sampled_values(setup, targets, batch.inputs, update, OF_POLICY))
    prior = jax.nn.log_softmax(old.logits).T if isinstance(old, Categorical) else 0.0
    new = lambda actor: setup.model.apply(actor, (), batch.inputs)[1]  # noqa: E731

    def of_policy(duals: Duals, actor: PyTree) -> tuple[Array, dict[str, Array]]:
        temperature, multipliers = duals.positive
        weights, _ = improved(values, temperature, prior)
        apart = [mean(each) for each in divergences(old, new(actor))]
        loss = -mean((weights * likelihood(old, new(actor), noise)).sum(0))
        penalty, _ = trust_region(multipliers, bounds, apart)
        logged = {"losses/policy_kl": jnp.asarray(sum(each.sum() for each in apart)), "losses/temperature": temperature}
        return loss + penalty, {"losses/actor_loss": loss, **logged}

    def of_duals(actor: PyTree, duals: Duals) -> tuple[Array, dict[str, Array]]:
        temperature, multipliers = duals.positive
        improvement = mean(improved(values, temperature, prior)[1])
        apart = [mean(each) for each in divergences(old, new(actor))]
        loss = temperature_loss(improvement, temperature, hp.improvement_kl)
        return loss + trust_region(multipliers, bounds, apart)[1], {}

    return of_policy, of_duals


# ----------------------------------------------------------------------------------------------------------------------- learn


def learn(setup: ActorCriticSetup[MPOConfig], learner: MPOState) -> tuple[MPOState, Metrics]:
    hp = setup.current(learner)
    nets, adam = networks(setup, learner.params, hp), optax.adam(hp.dual_learning_rate)

    def critic_update(targets: ActorCriticPair, carry: Any, update: CriticBatch) -> Any:
        y = target(setup, targets, update)
        params, opt_state, metrics = nets.critic.single_step(lambda critic: critic_loss(setup, critic, y, update), *carry)
        return (params, opt_state), metrics

    def group(carry: Any, updates: CriticBatch) -> Any:
        params, (opt_states, dual_state), targets, duals, replay = carry
        before = ((params.critic, opt_states.critic), replay)
        ((critic, critic_state), replay), metrics, last = learn_critics(
            setup, learner, hp.gamma, partial(critic_update, targets), before, updates
        )
        of_policy, of_duals = policy_losses(setup, hp, targets, last)
        slope, _ = mean_gradient(partial(of_duals, params.actor), duals, setup.axis_name)
        actor, actor_state, logged = nets.actor.single_step(partial(of_policy, duals), params.actor, opt_states.actor)
        logged["losses/actor_grad_norm"] = logged.pop("losses/grad_norm")
        step, dual_state = adam.update(slope, dual_state)
        params = ActorCriticPair(actor, critic)
        targets = optax.incremental_update(params, targets, hp.tau)
        opt_state = (ActorCriticPair(actor_state, critic_state), dual_state)
        return (params, opt_state, targets, optax.apply_updates(duals, step), replay), metrics | logged

    start = (learner.params, learner.opt_state, learner.target_params, learner.duals, learner.replay)
    end, metrics = jax.lax.scan(group, start, draw_updates(setup, learner, hp.gamma))
    names = ("params", "opt_state", "target_params", "duals", "replay")
    return setup.updated(learner, hp, metrics, **dict(zip(names, end, strict=True)))


def make_algorithm(setup: ActorCriticSetup[MPOConfig]) -> Algorithm:
    """Return MPO as an ``Algorithm``, bound to spaces but not to an environment."""
    transferable_fields = ("params", "target_params", "duals", "statistics")
    return setup.algorithm(init=init, policy=policy, act=act, learn=learn, transferable_fields=transferable_fields)


@with_keywords_of(actor_critic_replay_keywords)
def make_mpo(env: EnvLike, **keywords: Any) -> Agent:
    """Maximum a posteriori policy optimisation (Abdolmaleki et al. 2018a, 2018b) for bounded Box actions and Discrete actions.

    Args:
      model: the policy: arguments of ``jaxrl.models.policy_network``, such as ``{"hidden_sizes": (64, 64)}``, which also apply to
        the critics if ``critic`` is not given; or a memoryless Model whose outputs are a ``TanhNormal`` in [−1, 1], or a
        ``Categorical`` for Discrete actions; or a function of (observation_space, action_space) that returns one. Default: an MLP
        of 2×256, ReLU, for vectors.
    """
    kinds = (spaces.Box, spaces.Discrete)
    prepared, setup = prepare_off_policy(make_mpo, env, MPOConfig, MPOHyperparams, keywords, kinds)
    check_policy(keywords.get("model"), prepared.output, setup.action_space)
    refuse_without_effect(setup.action_space, prepared.hyperparams, setup.schedules)
    if isinstance(setup.action_space, spaces.Discrete) and setup.config.samples != MPOConfig().samples:
        raise ValueError(f"samples={setup.config.samples} has no effect on {setup.action_space}: sums over it are exact")
    return prepared.bind(make_algorithm(setup))

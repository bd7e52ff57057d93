"""Shared parts of algorithms with a deterministic policy (DDPG, TD3): learner state, acting with noise, and the update, which
takes the target as a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from jaxrl.algorithms.common.critic_ensemble import (
    ActorCriticPair,
    ActorCriticSetup,
    CriticBatch,
    action_values,
    draw_updates,
    learn_critics,
    min_over_subset,
    networks,
    td_loss,
)
from jaxrl.algorithms.common.off_policy import OffPolicyConfig, check_actions_of, init_networks, init_replay, prepare_off_policy
from jaxrl.algorithms.common.offline import data_statistics, seen
from jaxrl.exploration.action_noise import normal_each, uniform_of
from jaxrl.exploration.options import OU, Gaussian
from jaxrl.models import deterministic_policy
from jaxrl.optimize.learner import TargetLearner
from jaxrl.replay.transitions import bootstrapped
from jaxrl.rollout.collect import fold_each
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import Positive, added
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, StepInput


@dataclass(frozen=True)
class DeterministicConfig(OffPolicyConfig):
    """Structural settings of an algorithm that explores by adding noise to its actions."""

    noise: Gaussian | OU = Gaussian()
    """Noise on actions, for exploration."""
    normalize_observations: bool = added(True)
    """With ``data``: normalise observations by their mean and standard deviation in the data."""

    @property
    def hold_noise(self) -> int:
        """Rows of an episode that share one draw of noise."""
        return self.noise.hold if isinstance(self.noise, Gaussian) else 1


@option("td3_bc")
class Cloning(Option):
    """Keep the policy near the actions of the data (TD3+BC: Fujimoto & Gu 2021)."""

    alpha: Positive = hyperparameter("cloning_alpha", 2.5)
    """α, the weight of the values relative to the distance from the data's actions; near 0 it is behaviour cloning."""


class NoiseExploration(NamedTuple):
    """Exploration state of a policy with action noise."""

    at_random: Array
    """bool[]: draw actions uniformly between the bounds. True until the first update, and so during the warm-up."""
    scale: Array
    """f32[]: standard deviation of the noise, for actions in [−1, 1]."""
    theta: Array
    """f32[]: fraction by which an Ornstein–Uhlenbeck process decays at each row."""


# ---------------------------------------------------------------------------------------------------------------------- acting


def init(setup: ActorCriticSetup[Any], key: Key, hyperparams: Any) -> TargetLearner:
    network_key, learner_key = jax.random.split(key)
    params, _, opt_state = init_networks(setup, network_key, hyperparams)
    target, version = jax.tree.map(jnp.copy, params), jnp.zeros((), jnp.int32)
    fields = (hyperparams, data_statistics(setup), learner_key, version, target, init_replay(setup))
    return TargetLearner(params, opt_state, *fields)


def policy(setup: ActorCriticSetup[Any], learner: TargetLearner) -> Policy:
    hp = setup.current(learner)
    exploration = NoiseExploration(learner.version == 0, hp.exploration_noise, hp.ou_theta)
    return Policy(ActorCriticPair(learner.params.actor, ()), learner.statistics, exploration, learner.version)


def act(
    setup: ActorCriticSetup[Any], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Return actions with noise, clipped to the bounds.

    With ``OU`` the carry is the state of an Ornstein–Uhlenbeck process, f32[B, d], which starts at 0 in each episode:
    x ← x − θ·x + σ·ε (Lillicrap et al. 2016, with a step of 1).
    """
    action = setup.model.apply(policy.params.actor, (), normalize_inputs(policy.statistics, inputs))[1]
    if not explore:
        return carry, setup.to_environment(action), {}
    at_random, scale, theta = policy.exploration
    drawn = normal_each(fold_each(key, env_id), action.shape[-1])
    noise = scale * drawn
    if isinstance(setup.config.noise, OU):
        noise += (1.0 - theta) * jnp.where(inputs.is_first[:, None], 0.0, carry)
        carry = noise
    return carry, setup.to_environment(jnp.where(at_random, uniform_of(drawn), action + noise)), {}


# ---------------------------------------------------------------------------------------------------------------------- update


def critic_loss(
    setup: ActorCriticSetup[Any], critic: PyTree, target: Array, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """Sum over critics of ½·(Q(s, a) − y)² (Lillicrap et al. 2016, eq. 4)."""
    values = action_values(setup, critic, update.batch.inputs, update.batch.action, jax.random.fold_in(update.key, 1))
    return td_loss(values, target, update.batch, setup.axis_name)


def actor_loss(
    setup: ActorCriticSetup[Any], actor: PyTree, critic: PyTree, update: CriticBatch, hp: Any = None
) -> tuple[Array, dict[str, Array]]:
    """−E[Q(s, π(s))] with the first critic. Its gradient is the deterministic policy gradient (Silver et al. 2014, eq. 9;
    Lillicrap et al. 2016, eq. 6; Fujimoto et al. 2018, algorithm 1).

    With ``Cloning``: −λ·E[Q(s, π(s))] + E[(π(s) − a)²], where λ = α / E[|Q(s, π(s))|] is a constant, and the square a mean over
    the components of the action (Fujimoto & Gu 2021, eq. 5).
    """
    batch, first = update.batch, jax.tree.map(lambda x: x[:1], critic)
    action = setup.model.apply(actor, (), batch.inputs)[1]
    value = action_values(setup, first, batch.inputs, action, jax.random.fold_in(update.key, 2))[0]
    mean = setup.valid_mean(batch.valid)
    if getattr(setup.config, "cloning", None) is None:
        loss = -mean(value)
        return loss, {"losses/actor_loss": loss}
    scale = jax.lax.stop_gradient(hp.cloning_alpha / jnp.maximum(mean(jnp.abs(value)), 1e-6))
    distance = mean(jax.lax.square(action - batch.action).mean(-1))
    loss = distance - scale * mean(value)
    return loss, {"losses/actor_loss": loss, "losses/cloning_loss": distance}


TargetFn = Callable[[ActorCriticSetup[Any], Any, ActorCriticPair, CriticBatch], Array]
"""(setup, hyperparams, target parameters, batch) -> y f32[N]."""


def learn(target: TargetFn, setup: ActorCriticSetup[Any], learner: TargetLearner) -> tuple[TargetLearner, Metrics]:
    """Run an iteration's updates, in groups of ``policy_delay`` updates of the critics followed by one update of the policy and
    all target networks (Fujimoto et al. 2018, algorithm 1; with a delay of 1, Lillicrap et al. 2016, algorithm 1)."""
    hp = setup.current(learner)
    nets = networks(setup, learner.params, hp)

    def critic_update(targets: ActorCriticPair, carry: Any, update: CriticBatch) -> Any:
        params, opt_state = carry
        update = seen(learner.statistics, update)
        y = target(setup, hp, targets, update)
        loss = lambda params: critic_loss(setup, params, y, update)  # noqa: E731
        params, opt_state, metrics = nets.critic.single_step(loss, params, opt_state)
        return (params, opt_state), metrics

    def group(carry: Any, updates: CriticBatch) -> Any:
        params, opt_state, targets, replay = carry
        before = ((params.critic, opt_state.critic), replay)
        after, metrics, last = learn_critics(setup, learner, hp.gamma, partial(critic_update, targets), before, updates)
        (critic, critic_state), replay = after
        loss = lambda params: actor_loss(setup, params, critic, seen(learner.statistics, last), hp)  # noqa: E731
        actor, actor_state, logged = nets.actor.single_step(loss, params.actor, opt_state.actor)
        logged["losses/actor_grad_norm"] = logged.pop("losses/grad_norm")
        params = ActorCriticPair(actor, critic)
        targets = optax.incremental_update(params, targets, hp.tau)
        return (params, ActorCriticPair(actor_state, critic_state), targets, replay), metrics | logged

    start = (learner.params, learner.opt_state, learner.target_params, learner.replay)
    (params, opt_state, targets, replay), metrics = jax.lax.scan(group, start, draw_updates(setup, learner, hp.gamma))
    fields = {"params": params, "target_params": targets, "opt_state": opt_state, "replay": replay}
    return setup.updated(learner, hp, metrics, **fields)


def target_value(setup: ActorCriticSetup[Any], targets: ActorCriticPair, action: Array, update: CriticBatch) -> Array:
    """y = r + γ·(1 − terminated)·Q⁻(s′, action), f32[N], where Q⁻ is the minimum over the ``chosen`` target critics."""
    values = action_values(setup, targets.critic, update.batch.next_inputs, action, jax.random.fold_in(update.key, 0))
    return bootstrapped(update.batch, min_over_subset(values, update.chosen))


# -------------------------------------------------------------------------------------------------------------------- builders


def make_algorithm(target: TargetFn, setup: ActorCriticSetup[Any]) -> Algorithm:
    """Return the ``Algorithm`` with these targets, bound to spaces but not to an environment."""
    transferable_fields = ("params", "target_params", "statistics")
    algorithm = setup.algorithm(
        init=init, policy=policy, act=act, learn=partial(learn, target), transferable_fields=transferable_fields
    )
    if isinstance(setup.config.noise, Gaussian):
        return algorithm
    assert isinstance(setup.action_space, spaces.Box)
    size = math.prod(setup.action_space.shape)
    return algorithm._replace(initial_carry=lambda batch_size: jnp.zeros((batch_size, size)))


def build(
    builder: Callable[..., Agent],
    env: EnvLike,
    config: type[DeterministicConfig],
    hyperparams: type,
    keywords: Mapping[str, Any],
    target: TargetFn,
) -> Agent:
    """Build the agent for a builder's arguments. Parameters and errors are those of ``prepare_off_policy``.

    Args:
      target: computes the critics' targets.
    """
    kinds = (spaces.Box,)
    prepared, setup = prepare_off_policy(builder, env, config, hyperparams, keywords, kinds, network=deterministic_policy)
    check_actions_of(keywords.get("model"), prepared.output, setup.action_space)
    return prepared.bind(make_algorithm(target, setup))

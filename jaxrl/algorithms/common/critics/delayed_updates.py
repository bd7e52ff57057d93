"""Loop over the updates of an algorithm with target networks: groups of updates of the critics, each followed by one update of
the policy and of all target networks (Fujimoto et al. 2018, algorithm 1; with groups of one, Lillicrap et al. 2016, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup
from jaxrl.algorithms.common.critics.network_state import networks
from jaxrl.algorithms.common.critics.updates import CriticBatch, draw_updates, learn_critics
from jaxrl.algorithms.common.off_policy import init_networks, init_replay
from jaxrl.algorithms.common.offline.datasets import data_statistics, seen
from jaxrl.optimize.learner import TargetLearner
from jaxrl.types import Array, Key, Metrics, PyTree

Loss = tuple[Array, dict[str, Array]]
"""A loss, and scalars to log."""


class Losses(NamedTuple):
    """Losses that the updates of an algorithm minimise."""

    target: Callable[[PyTree, ActorCriticPair, CriticBatch], Array]
    """(policy, target networks, batch) -> y, the critics' targets f32[N]."""
    critic: Callable[[PyTree, Array, CriticBatch], Loss]
    """(critics, y, batch) -> the critics' loss, with ``PRIORITIES`` among its scalars."""
    actor: Callable[[PyTree, PyTree, ActorCriticPair, CriticBatch], Loss]
    """(policy, critics, target networks, batch) -> the policy's loss."""


def init(setup: ActorCriticSetup[Any], key: Key, hyperparams: Any, *, target_policy: bool = True) -> TargetLearner:
    """Initialise the networks, and the target networks as their copies; without ``target_policy`` those of the critics alone."""
    network_key, learner_key = jax.random.split(key)
    params, _, opt_state = init_networks(setup, network_key, hyperparams)
    targets = jax.tree.map(jnp.copy, params if target_policy else params._replace(actor=()))
    fields = (hyperparams, data_statistics(setup), learner_key, jnp.zeros((), jnp.int32), targets, init_replay(setup))
    return TargetLearner(params, opt_state, *fields)


def learn(
    setup: ActorCriticSetup[Any], learner: TargetLearner, hp: Any, losses: Losses, reward_scale: float = 1.0
) -> tuple[TargetLearner, Metrics]:
    """Run the updates of an iteration, in groups of ``policy_delay``.

    Args:
      hp: hyperparameters of these updates, with ``tau``.
      reward_scale: factor on rewards.
    """
    nets = networks(setup, learner.params, hp)

    def critic_update(actor: PyTree, targets: ActorCriticPair, carry: Any, update: CriticBatch) -> Any:
        update = seen(learner.statistics, update, reward_scale)
        y = losses.target(actor, targets, update)
        params, opt_state, metrics = nets.critic.single_step(lambda critic: losses.critic(critic, y, update), *carry)
        return (params, opt_state), metrics

    def group(carry: Any, updates: CriticBatch) -> Any:
        params, opt_state, targets, replay = carry
        before = ((params.critic, opt_state.critic), replay)
        once = partial(critic_update, params.actor, targets)
        ((critic, critic_state), replay), metrics, last = learn_critics(setup, learner, hp.gamma, once, before, updates)
        last = seen(learner.statistics, last, reward_scale)
        loss = lambda actor: losses.actor(actor, critic, targets, last)  # noqa: E731
        actor, actor_state, logged = nets.actor.single_step(loss, params.actor, opt_state.actor)
        logged["losses/actor_grad_norm"] = logged.pop("losses/grad_norm")
        params = ActorCriticPair(actor, critic)
        followed = params if jax.tree.leaves(targets.actor) else params._replace(actor=())
        targets = optax.incremental_update(followed, targets, hp.tau)
        return (params, ActorCriticPair(actor_state, critic_state), targets, replay), metrics | logged

    start = (learner.params, learner.opt_state, learner.target_params, learner.replay)
    (params, opt_state, targets, replay), metrics = jax.lax.scan(group, start, draw_updates(setup, learner, hp.gamma))
    fields = {"params": params, "target_params": targets, "opt_state": opt_state, "replay": replay}
    return setup.updated(learner, hp, metrics, **fields)

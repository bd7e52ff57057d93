"""Random draws and batches of the critics' updates in an iteration, and groups of these updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup
from jaxrl.algorithms.common.sequence_batches import priorities_of, sequence_batch
from jaxrl.builder.replay_setup import PRIORITIES, in_parts
from jaxrl.exploration.action_noise import standard_normal
from jaxrl.optimize.minibatches import random_subsets
from jaxrl.replay import Draw
from jaxrl.replay.transitions import transitions
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Array, Key, PyTree

NOISE, CHOSEN = 0, 1
"""Random streams of an iteration: noise of actions and networks, and the choice of target critics."""


class CriticBatch(NamedTuple):
    """Inputs of one update of the critics."""

    batch: Any
    """``Transitions`` [batch_size], or a ``SequenceBatch``, with actions in the networks' units: for a Box in [−1, 1], flat. ()
    until the update if it draws its batch itself."""
    noise: Array
    """f32[2, N, d] for a Box, standard normal: for actions at the N next observations, and at the current ones."""
    chosen: Array
    """bool[num_critics]: the critics over which the target takes the minimum."""
    key: Key
    """Random key of the networks."""
    draw_key: Key | None = None
    """Random key of the draw, if the update draws its batch itself."""


def draw_updates(setup: ActorCriticSetup[Any], learner: Any, gamma: Array) -> CriticBatch:
    """Draw the batches and random numbers of all updates of an iteration, [groups, policy_delay, ...].

    Drawing before the loop over updates takes a few kernels instead of several per update. It also keeps the replay out of the
    loop, which would copy a buffer that it reads.
    """
    config, space, batch = setup.config, setup.action_space, ()
    if not setup.draws_in_turn:
        batch = in_parts(batch_of(setup, learner, learner.replay, setup.draw(learner), gamma), config.updates_per_iteration)
    noise_key, network_key = jax.random.split(setup.device_key(setup.stream(learner, NOISE)))
    noise = jnp.zeros((config.updates_per_iteration, 2, 0))
    if isinstance(space, spaces.Box):
        rows = setup.device_batch_size * max(1, setup.joint_agents)
        if config.has_memory:
            rows *= config.rows_behind - config.burn_in
        shape = (config.updates_per_iteration, 2, rows, math.prod(space.shape))
        noise = standard_normal(noise_key, shape)
    updates = CriticBatch(
        batch, noise, critic_subset(setup, learner), jax.random.split(network_key, config.updates_per_iteration)
    )
    if setup.draws_in_turn:
        numbers = jnp.arange(config.updates_per_iteration, dtype=jnp.int32)
        updates = updates._replace(draw_key=fold_each(setup.draw_key(learner), numbers))
    groups = config.updates_per_iteration // config.policy_delay
    return jax.tree.map(lambda x: x.reshape((groups, config.policy_delay, *x.shape[1:])), updates)


def batch_of(setup: ActorCriticSetup[Any], learner: Any, replay: PyTree, draw: Draw, gamma: Array) -> Any:
    """Return the transitions of drawn rows, or a batch of drawn sequences, with actions in the networks' units."""
    config, space = setup.config, setup.action_space
    if config.has_memory:
        found = sequence_batch(setup, learner, replay, draw, gamma)
        return found._replace(action=from_environment(space, found.action)) if isinstance(space, spaces.Box) else found
    drawn = transitions(setup.replay, replay, draw, gamma, config.n_step, next_action=config.reads_next_action)
    drawn = setup.weighted(drawn, learner)
    if setup.joint_agents:  # a drawn environment may have agents that are over
        drawn = drawn._replace(valid=drawn.valid & setup.replay.take(replay, draw, 0).valid)
    batch = zero_invalid(drawn, drawn.valid)
    if isinstance(space, spaces.Discrete) and isinstance(setup.critic_actions, spaces.Box):
        batch = batch._replace(action=jax.nn.one_hot(batch.action - int(space.start), int(space.n)))
    if isinstance(space, spaces.Box):
        batch = batch._replace(action=from_environment(space, batch.action))
        if config.reads_next_action:
            batch = batch._replace(next_action=from_environment(space, batch.next_action))
    if setup.joint_agents:
        batch = batch._replace(action=jnp.where(batch.valid[:, None], batch.action, 0.0))
    return batch


def learn_critics(
    setup: ActorCriticSetup[Any],
    learner: Any,
    gamma: Array,
    critic_update: Callable[[Any, CriticBatch], tuple[Any, dict[str, Array]]],
    carry: tuple[Any, PyTree],
    group: CriticBatch,
) -> tuple[tuple[Any, PyTree], dict[str, Array], CriticBatch]:
    """Run a group of updates of the critics.

    Args:
      critic_update: a single update, (critics, inputs) -> (critics, metrics with ``PRIORITIES``).
      carry: (critics, the replay's state).
      group: inputs of the updates, [policy_delay, ...], from ``draw_updates``.

    Returns:
      The last carry, the metrics, stacked, and the inputs of the last update.
    """

    def step(carry: tuple[Any, PyTree], update: CriticBatch) -> Any:
        (critics, replay), drawn = carry, cast(Draw, None)
        if setup.draws_in_turn:
            drawn = setup.draw_batches(replay, update.draw_key)  # type: ignore[arg-type]
            update = update._replace(batch=batch_of(setup, learner, replay, drawn, gamma))
        critics, metrics = critic_update(critics, update)
        priorities = metrics.pop(PRIORITIES)
        if setup.replay.prioritised:
            replay = setup.replay.update(replay, drawn, priorities_of(update.batch, priorities))
        return (critics, replay), (metrics, update.batch if setup.draws_in_turn else ())

    carry, (metrics, batches) = jax.lax.scan(step, carry, group)
    learnt = group._replace(batch=batches) if setup.draws_in_turn else group
    return carry, metrics, jax.tree.map(lambda x: x[-1], learnt)


def critic_subset(setup: ActorCriticSetup[Any], learner: Any) -> Array:
    """Choose ``Ensemble.subset`` critics for each update, without replacement: bool[updates, num_critics], the same on all
    devices."""
    critics = setup.config.critics
    shape = (setup.config.updates_per_iteration, critics.size)
    if critics.subset in (0, critics.size):
        return jnp.ones(shape, bool)
    return random_subsets(setup.stream(learner, CHOSEN), shape, critics.subset)

"""Ensembles of critics: their state and steps, random draws and batches of an iteration, groups of critic updates, action-values
and the TD loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.sequence_batches import priorities_of, sequence_batch, store_sequences, targets_of
from jaxrl.builder.config import ReplayConfig
from jaxrl.builder.replay_setup import PRIORITIES, ReplaySetup, in_parts
from jaxrl.exploration.action_noise import standard_normal
from jaxrl.optimize.descent import Descent
from jaxrl.optimize.gradients import valid_mean
from jaxrl.optimize.minibatches import random_subsets
from jaxrl.replay import Draw, of_all_agents
from jaxrl.replay.transitions import Transitions, transitions
from jaxrl.rollout.agents import joint_actions
from jaxrl.rollout.collect import fold_each
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.outputs import Window, apply_ensemble, train_ensemble, with_statistics
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count, CountOrZero
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Algorithm, Array, Key, Model, PyTree, StepInput

C = TypeVar("C", bound=ReplayConfig)


class ActorCriticPair(NamedTuple):
    """Values for the policy and for the critics, such as their parameters or optimiser states."""

    actor: Any
    critic: Any
    """Parameters of all critics are stacked, [num_critics, ...]."""


@option("ensemble")
class Ensemble(Option):
    """Critics that output a value. Targets use the minimum over some or all of them (Fujimoto et al. 2018)."""

    size: Count = 2
    """Number of critics."""
    subset: CountOrZero = 0
    """Critics over which a target takes the minimum, drawn anew for each update (Chen et al. 2021); 0: all."""

    @property
    def num_outputs(self) -> int | None:
        """Number of outputs of a critic per action, or None for a single value."""
        return None

    def check(self) -> None:
        if self.subset > self.size:
            raise ValueError(f"subset={self.subset} must be at most size={self.size}")

    def pessimistic(self, outputs: Array, chosen: Array) -> Array:
        """Return the values for targets, f32[N, ...], of all critics' outputs [num_critics, N, ...]."""
        return min_over_subset(outputs, chosen)

    def values(self, outputs: Array) -> Array:
        """Return each critic's value, f32[num_critics, N, ...]."""
        return outputs

    def target(self, batch: Any, outputs: Array, chosen: Array, penalty: Array | float = 0.0) -> Array:
        """Return y = r + γ·(1 − terminated)·(Q − penalty), f32[N], where Q is the minimum over the ``chosen`` critics.

        Args:
          outputs: of the target critics at the next observation.
          penalty: f32[N], or 0.
        """
        return targets_of(batch, self.pessimistic(outputs, chosen) - penalty)

    def loss(self, outputs: Array, target: Array, batch: Transitions, axis_name: str | None) -> tuple[Array, dict[str, Array]]:
        """Return the critics' loss, and scalars to log with ``PRIORITIES``."""
        return td_loss(outputs, target, batch, axis_name)


@dataclass(frozen=True, kw_only=True)
class ActorCriticSetup(ReplaySetup[C]):
    """Setup of an algorithm with a policy (``model``) and an ensemble of critics."""

    critic: Model
    """Model of a single critic; ``jaxrl.models.action_value`` documents its inputs."""
    critic_actions: spaces.Space
    """Actions as critics take them: a Box, with ``joint_agents`` those of all agents one after the other; or Discrete ones, and a
    critic returns the values of all of them."""
    joint_agents: int = 0
    """Number of agents whose actions critics take together; 0 if each critic takes those of one agent."""

    @property
    def draws_in_turn(self) -> bool:
        """True if each update draws its batch itself: with priorities because draws depend on the updates before them, and with
        memory to hold the sequences of one update at a time."""
        return self.replay.prioritised or self.config.has_memory

    def algorithm(self, **keywords: Any) -> Algorithm:
        return super().algorithm(**({"observe": store_sequences} if self.config.has_memory else {}), **keywords)

    def draw_batches(self, replay: PyTree, key: Key, number: int = 1) -> Draw:
        return of_all_agents(super().draw_batches(replay, key, number), self.joint_agents)


NOISE, CHOSEN = 0, 1
"""Random streams of an iteration: noise of actions and networks, and the choice of target critics."""


def networks(setup: ActorCriticSetup[Any], params: ActorCriticPair, hyperparams: Any) -> ActorCriticPair:
    """Return the steps of the policy's optimiser, at ``actor_learning_rate``, and of the critics', a ``Descent`` each."""
    rates = (hyperparams._replace(learning_rate=hyperparams.actor_learning_rate), hyperparams)
    return ActorCriticPair(*(setup.descent(hp, part, single_steps=True) for hp, part in zip(rates, params, strict=True)))


STATISTICS = "statistics"
"""Key in the metrics of a loss for the statistics that its network has learnt. They are not logged."""


class NetworkState(NamedTuple):
    """State of a network, or of an ensemble, in a loop over updates."""

    params: PyTree
    statistics: PyTree
    """() if the network learns none."""
    opt_state: PyTree

    @property
    def variables(self) -> PyTree:
        """The first argument of the model's ``apply``."""
        return with_statistics(self.params, self.statistics)


def network_states(learner: Any, opt_states: ActorCriticPair) -> ActorCriticPair:
    """Return the states of the learner's policy and critics."""
    statistics = learner.statistics or ActorCriticPair((), ())
    return ActorCriticPair(*map(NetworkState, learner.params, statistics, opt_states))


def network_variables(holder: Any) -> ActorCriticPair:
    """Return the first arguments of ``apply`` of the policy and the critics of a learner, or of a ``Policy``."""
    return ActorCriticPair(*map(with_statistics, holder.params, holder.statistics)) if holder.statistics else holder.params


def train_step(
    descent: Descent, loss: Callable[[PyTree], tuple[Array, dict[str, Any]]], network: NetworkState
) -> tuple[NetworkState, dict[str, Array]]:
    """Take one gradient step with a network's parameters, and keep the statistics that it has learnt.

    Args:
      loss: variables -> (loss, scalars to log with ``STATISTICS``, if the network learns any).
    """
    of_params = lambda params: loss(with_statistics(params, network.statistics))  # noqa: E731
    params, opt_state, metrics = descent.single_step(of_params, network.params, network.opt_state)
    return NetworkState(params, metrics.pop(STATISTICS, ()), opt_state), metrics


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


def action_values(
    setup: ActorCriticSetup[Any],
    params: PyTree,
    inputs: StepInput,
    action: Array | None = None,
    key: Key | None = None,
    others: Array | None = None,
) -> Array:
    """Return the outputs of all critics, [num_critics, N, ...], for ``action`` f32[N, d] in [−1, 1], or for all Discrete actions.

    Args:
      params: [num_critics, ...], or ``Variables``.
      action: None with Discrete actions, if critics return the values of all.
      key: random key of the critics, split between them.
      others: actions of the other agents, f32[N, d], if critics take those of all; default: ``action``, as constants.
    """
    if setup.joint_agents and action is not None:
        action = joint_actions(action, jax.lax.stop_gradient(action) if others is None else others, setup.joint_agents)
    return apply_ensemble(setup.critic, params, _seen(inputs, action), key)


def trained_action_values(
    setup: ActorCriticSetup[Any], params: PyTree, inputs: StepInput, action: Array | None, valid: Array, key: Key
) -> tuple[Array, PyTree]:
    """Return the same in training, where rows that count, ``valid`` bool[N], may influence each other, and the critics' new
    ``STATISTICS``."""
    return train_ensemble(setup.critic, params, _seen(inputs, action), valid, key, setup.axis_name)


def _seen(inputs: Any, action: Array | None) -> Any:
    if action is None:
        return inputs
    return inputs.with_actions(action) if isinstance(inputs, Window) else inputs._replace(obs=(inputs.obs, action))


def min_over_subset(values: Array, chosen: Array) -> Array:
    """Minimum of the values [num_critics, ...] over the ``chosen`` critics."""
    return jnp.where(chosen.reshape((-1, *[1] * (values.ndim - 1))), values, jnp.inf).min(0)


def td_loss(values: Array, target: Array, batch: Transitions, axis_name: str | None) -> tuple[Array, dict[str, Array]]:
    """Sum over critics of ½·w·(Q(s, a) − y)², as a mean over valid draws. Priorities are the critics' mean |Q(s, a) − y|.

    Args:
      values: f32[num_critics, N].
      target: f32[N].
    """
    mean = valid_mean(batch.valid, axis_name)
    loss = 0.5 * mean(batch.weight * (values - target) ** 2).sum()
    logged = {"losses/td_loss": loss, "losses/q_values": mean(values.mean(0))}
    return loss, logged | {PRIORITIES: jnp.where(batch.valid, jnp.abs(values - target).mean(0), 0.0)}

"""Ensembles of critics: their setup, action-values, targets and the TD loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.sequence_batches import store_sequences, targets_of
from jaxrl.builder.config import ReplayConfig
from jaxrl.builder.replay_setup import PRIORITIES, ReplaySetup
from jaxrl.optimize.gradients import valid_mean
from jaxrl.replay import Draw, of_all_agents
from jaxrl.replay.transitions import Transitions
from jaxrl.rollout.agents import joint_actions
from jaxrl.rollout.outputs import Window, apply_ensemble, train_ensemble
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count, CountOrZero
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

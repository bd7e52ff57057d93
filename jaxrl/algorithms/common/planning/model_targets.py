"""Targets of a learned model (Schrittwieser et al. 2020, section 3): the policies, values and rewards that follow a position."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.planning.latent_model import ENDS, OTHER_PLAYER, SAME_PLAYER
from jaxrl.replay.sequence import Sequences
from jaxrl.returns import discounts, n_step_returns
from jaxrl.spaces.entries import turn_sign
from jaxrl.types import Array


class Searched(NamedTuple):
    """Results of a search, stored with its row."""

    policy: Array
    """f32[n]: the improved policy."""
    value: Array
    """f32: the value of the position."""


class Targets(NamedTuple):
    """Targets of the model from a position, for k = 0 … K, time-major. Beyond a termination, states are absorbing: rewards and
    values are 0. Nothing is known beyond a truncation."""

    policy: Array
    """f32[K + 1, N, n]"""
    value: Array
    """f32[K + 1, N]"""
    reward: Array
    """f32[K, N]"""
    turn: Array
    """i32[K, N]: continuation after the action (``jaxrl.algorithms.common.planning.latent_model``)."""
    in_episode: Array
    """bool[K + 1, N]: position k is one of the same episode in which the agent acted."""
    known: Array
    """bool[K + 1, N]: position k is such a position, or absorbing."""


def targets(batch: Sequences, found: Searched, gamma: Array | float, steps: int, n_step: int) -> Targets:
    """Return the targets of drawn sequences. Those of values are n-step returns, with the sign of the player.

    Args:
      batch: [L, N] rows, L = steps + n_step.
      found: [L + 1, N]: what searches found at the rows, and the values to bootstrap from.
      steps: K, the steps of the model.
      n_step: number of rewards in a return.
    """
    returns = n_step_returns(batch.reward, *discounts(batch, gamma), found.value[1:], batch.valid, n_step)
    in_episode = jnp.cumprod(batch.valid[: steps + 1], axis=0).astype(bool)
    over = jnp.cumsum(in_episode & batch.terminated[: steps + 1], axis=0) > 0
    known = in_episode | jnp.concatenate([jnp.zeros_like(over[:1]), over[:-1]])
    before, after = (jax.tree.map(lambda x, part=part: x[part], batch.inputs.obs) for part in (slice(steps), slice(1, steps + 1)))
    same = jnp.broadcast_to(turn_sign(before, after) > 0, (steps, *in_episode.shape[1:]))
    goes_on = in_episode[:-1] & ~batch.terminated[:steps]
    return Targets(
        policy=found.policy[: steps + 1],
        value=jnp.where(in_episode, returns[: steps + 1], 0.0),
        reward=jnp.where(in_episode[:-1], batch.reward[:steps], 0.0),
        turn=jnp.where(goes_on, jnp.where(same, SAME_PLAYER, OTHER_PLAYER), ENDS),
        in_episode=in_episode,
        known=known,
    )

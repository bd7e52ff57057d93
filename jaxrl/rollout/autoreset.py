"""Autoreset in the NEXT_STEP convention: the outcome of a row, the policy's next input, and episode statistics.

Functions take NumPy or JAX arrays, and return arrays of the same kind. This module does not import jax, so that a process that
only steps host environments need not import it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tree
from gymnasium import spaces

from jaxrl.types import Array, EpisodeStatistics, HostStep, PyTree, StepInput, TimeStep


class StepOutcome(NamedTuple):
    """Outcome of a row, [B].

    The row after the end of an episode is spent on the reset: it is not valid, its reward is 0, and it does not end an episode.
    """

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    info: dict[str, Array]
    """``info`` of the environment, on every row."""
    episode: EpisodeStatistics
    """Statistics after the row: those of the whole episode if it ended here."""

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated


def finish_step(
    done: Array, episode: EpisodeStatistics, action: Array, reached: TimeStep | HostStep, max_episode_steps: int | None
) -> tuple[StepInput, StepOutcome]:
    """Return ``(next input of the policy, outcome of the row)``, [B].

    A row that both terminates and is truncated counts as terminated.

    Args:
      done: bool[B], True if the previous row ended an episode.
      episode: statistics before the row.
      reached: result of the environment for ``action``. Where ``done``, ``obs`` is the first of the next episode, and only
        ``obs`` is used.
      max_episode_steps: limit to enforce; None for no limit in addition to the environment's.
    """
    xp, valid = done.__array_namespace__(), ~done
    inputs = next_input(reached.obs, action, xp.asarray(reached.reward, xp.float32), valid)
    length = xp.where(valid, episode.episodic_length + 1, 0)
    terminated, truncated = xp.logical_and(reached.terminated, valid), xp.logical_and(reached.truncated, valid)
    if max_episode_steps is not None:
        truncated |= length >= max_episode_steps
    reward = inputs.prev_reward
    episode = EpisodeStatistics(xp.where(valid, episode.episodic_return + reward, 0.0), length)
    return inputs, StepOutcome(reward, terminated, truncated & ~terminated, valid, reached.info, episode)


def next_input(obs: PyTree, action: Array, reward: Array, valid: Array) -> StepInput:
    """Return the policy's input after a row with ``action``, ``reward`` and the reached ``obs``; any leading axes."""
    xp = valid.__array_namespace__()
    prev_action = xp.where(expand_mask(valid, action), action, xp.zeros_like(action))
    return StepInput(obs, prev_action, xp.where(valid, reward, 0), ~valid)


def first_input(obs: PyTree, action_space: spaces.Space, batch_size: int) -> StepInput:
    """Return the input of an episode's first row, for ``obs`` [B, ...]."""
    xp = tree.flatten(obs)[0].__array_namespace__()
    prev_action = zero_actions(action_space, batch_size, xp)
    return StepInput(obs, prev_action, xp.zeros(batch_size, xp.float32), xp.ones(batch_size, bool))


def zero_actions(space: spaces.Space, batch_size: int, xp: Any = np) -> Array:
    """Return zeros [batch_size, ...] in the type of actions in jaxrl: int32 or float32, independent of the space's own dtype."""
    assert space.shape is not None and space.dtype is not None
    return xp.zeros((batch_size, *space.shape), xp.float32 if np.issubdtype(space.dtype, np.floating) else xp.int32)


def no_episode(batch_size: int, xp: Any = np) -> EpisodeStatistics:
    """Return the statistics of episodes that have just started, [B]."""
    return EpisodeStatistics(xp.zeros(batch_size, xp.float32), xp.zeros(batch_size, xp.int32))


def expand_mask(x: Array, like: Array) -> Array:
    """Append axes to a mask ``x`` so that it broadcasts against ``like``."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))

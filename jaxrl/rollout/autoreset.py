"""Autoreset in the NEXT_STEP convention: the outcome of a row, the policy's next input, and episode statistics.

Functions take NumPy or JAX arrays, and return arrays of the same kind. This module does not import jax, so that a process that
only steps host environments need not import it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tree
from gymnasium import spaces

from jaxrl.rollout.agents import all_over, spent_on_reset, together
from jaxrl.types import Array, EpisodeStatistics, HostStep, PyTree, StepInput, TimeStep


class StepOutcome(NamedTuple):
    """Outcome of a row, [B].

    The row after the end of an episode is spent on the reset: it is not valid, its reward is 0, and it does not end an episode.
    With several agents in an environment, it waits for the others: the rows in between are not valid either.
    """

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    info: dict[str, Array]
    """``info`` of the environment, on every row."""
    episode: EpisodeStatistics
    """Statistics after the row: those of the whole episode if it is over."""
    over: Array
    """The episode is over: it ended on this row, or on an earlier one with no reset since."""

    @property
    def done(self) -> Array:
        """The episode ended on this row."""
        return self.terminated | self.truncated

    def of_environments(self, num_agents: int) -> tuple[EpisodeStatistics, Array]:
        """Return the statistics of the environments' episodes, [N], and whether they are over, bool[N]. With several agents, the
        return is the mean over agents, and the length is that of the longest-lived."""
        if not num_agents:
            return self.episode, self.over
        returns, lengths = (together(x, num_agents) for x in self.episode)
        return EpisodeStatistics(returns.mean(-1), lengths.max(-1)), all_over(self.over, num_agents)


def finish_step(
    over: Array,
    episode: EpisodeStatistics,
    action: Array,
    reached: TimeStep | HostStep,
    max_episode_steps: int | None,
    num_agents: int = 0,
    sign: Array | float = 1.0,
) -> tuple[StepInput, StepOutcome]:
    """Return ``(next input of the policy, outcome of the row)``, [B].

    A row that both terminates and is truncated counts as terminated.

    Args:
      over: bool[B], True if the episode was over before the row.
      episode: statistics before the row.
      reached: result of the environment for ``action``, as lanes. In a row that is spent on a reset, ``obs`` is the first of the
        next episode. Where ``over``, only ``obs`` is used.
      max_episode_steps: limit to enforce; None for no limit in addition to the environment's.
      num_agents: agents in each environment, which is reset when all are over; 0 for environments of one.
      sign: that of the rewards in the episode's return, which is player 0's in a game (``jaxrl.spaces.entries.player_sign``).
    """
    xp, valid, reset = over.__array_namespace__(), ~over, spent_on_reset(over, num_agents)
    inputs = next_input(reached.obs, action, xp.asarray(reached.reward, xp.float32), valid)._replace(is_first=reset)
    reward = inputs.prev_reward
    length = xp.where(reset, 0, episode.episodic_length + valid)
    terminated, truncated = xp.logical_and(reached.terminated, valid), xp.logical_and(reached.truncated, valid)
    if max_episode_steps is not None:
        truncated |= valid & (length >= max_episode_steps)
    truncated &= ~terminated
    episode = EpisodeStatistics(xp.where(reset, 0.0, episode.episodic_return + sign * reward), length)
    over = ~reset & (over | terminated | truncated)
    return inputs, StepOutcome(reward, terminated, truncated, valid, reached.info, episode, over)


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

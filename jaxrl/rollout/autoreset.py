"""The row rule: what a row comes to, what the policy sees after it, and where its episode stands.

Everything here takes NumPy's arrays and JAX's alike, and gives arrays of the kind that it was given. Nothing imports jax, so that
a process which only steps host environments need not either.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tree
from gymnasium import spaces

from jaxrl.types import Array, EpisodeStatistics, HostStep, PyTree, StepInput, TimeStep


class StepOutcome(NamedTuple):
    """What a row came to, [B]. The row after an end is spent on the reset: it is not valid, earns nothing and ends nothing."""

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    info: dict[str, Array]
    """As the environment gave it, on every row."""
    episode: EpisodeStatistics
    """After the row; of an episode that ended here, the whole."""

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated


def finish_step(
    done: Array, episode: EpisodeStatistics, action: Array, reached: TimeStep | HostStep, max_episode_steps: int | None
) -> tuple[StepInput, StepOutcome]:
    """``(what the policy sees next, what the row came to)``, [B].

    A row that terminates is not truncated as well: termination wins.

    Args:
      done: bool[B], whether the row before ended an episode.
      episode: before the row.
      reached: what the environment gave for ``action``; where ``done``, ``obs`` is the first of the next episode, and only that
        is looked at.
      max_episode_steps: the limit to enforce; None: the environment's own, or none.
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
    """What the policy sees after a row that executed ``action``, earned ``reward`` and reached ``obs``; any leading axes."""
    xp = valid.__array_namespace__()
    prev_action = xp.where(expand_mask(valid, action), action, xp.zeros_like(action))
    return StepInput(obs, prev_action, xp.where(valid, reward, 0), ~valid)


def first_input(obs: PyTree, action_space: spaces.Space, batch_size: int) -> StepInput:
    """The input of an episode's first row, for ``obs`` [B, ...]."""
    xp = tree.flatten(obs)[0].__array_namespace__()
    prev_action = zero_actions(action_space, batch_size, xp)
    return StepInput(obs, prev_action, xp.zeros(batch_size, xp.float32), xp.ones(batch_size, bool))


def zero_actions(space: spaces.Space, batch_size: int, xp: Any = np) -> Array:
    """[batch_size, ...] zeros in the type that rules act in: int32 or float32, whatever small type the space declares."""
    assert space.shape is not None and space.dtype is not None
    return xp.zeros((batch_size, *space.shape), xp.float32 if np.issubdtype(space.dtype, np.floating) else xp.int32)


def no_episode(batch_size: int, xp: Any = np) -> EpisodeStatistics:
    """Statistics of episodes that begin, [B]."""
    return EpisodeStatistics(xp.zeros(batch_size, xp.float32), xp.zeros(batch_size, xp.int32))


def expand_mask(x: Array, like: Array) -> Array:
    """Append axes to a mask ``x`` so that it broadcasts against ``like``."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))

"""Host environments as the loops use them: what ``rollout.advance`` is for pure ones, with NumPy arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.spaces import per_row, zero_actions
from jaxrl.types import EpisodeStatistics, HostEnv, PyTree, StepInput


class HostRow(NamedTuple):
    """What one row of host environments was, [B]."""

    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    episode: EpisodeStatistics
    """After the row."""


class Stepper:
    """Running host environments, and where their episodes stand.

    Observations are copied as they come, since an environment may write the next ones into the same arrays. Episodes end at
    ``max_episode_steps``, whether or not the environments know that limit.
    """

    def __init__(self, env: HostEnv, num_envs: int, seed: int, *, evaluation: bool = False) -> None:
        """``evaluation``: open the form that is scored. Only first episodes count there, so none is begun anew at the limit."""
        self._env, self._num_envs, self._evaluation = env, num_envs, evaluation
        self._envs = (env.open_eval if evaluation and env.open_eval else env.open)(num_envs, seed)
        self.done = np.zeros(num_envs, bool)
        self._cut = self.done
        """Which episodes ended at a limit that the environments do not know of, so that they must be told to reset."""
        self.episode = EpisodeStatistics(np.zeros(num_envs, np.float32), np.zeros(num_envs, np.int32))  # type: ignore[arg-type]

    def reset(self) -> StepInput:
        """Begin all episodes: the input of their first rows."""
        prev_action = np.asarray(zero_actions(self._env.action_space, self._num_envs))
        no_reward, first = np.zeros(self._num_envs, np.float32), np.ones(self._num_envs, bool)
        self.input = StepInput(_copy(self._envs.reset()), prev_action, no_reward, first)  # type: ignore[arg-type]
        return self.input

    def step(self, action: np.ndarray) -> HostRow:
        """Execute one row; ``input``, ``done`` and ``episode`` are then those after it."""
        reached, valid = self._envs.step(action), ~self.done
        obs = _copy(reached.obs)
        if self._cut.any():
            obs = self._begin_anew(obs)
        reward = np.where(valid, reached.reward, 0).astype(np.float32)
        terminated, truncated = reached.terminated & valid, reached.truncated & valid
        self.episode = EpisodeStatistics(
            np.where(valid, self.episode.episodic_return + reward, np.float32(0)),  # type: ignore[arg-type]
            np.where(valid, self.episode.episodic_length + 1, np.int32(0)),  # type: ignore[arg-type]
        )
        at_limit = np.zeros_like(valid)
        if self._env.max_episode_steps is not None:
            at_limit = np.asarray(self.episode.episodic_length >= self._env.max_episode_steps)
        self._cut = at_limit & ~terminated & ~truncated & (not self._evaluation)
        truncated = (truncated | at_limit) & ~terminated
        self.done = terminated | truncated
        prev_action = np.where(per_row(valid, action), action, np.zeros_like(action))  # type: ignore[arg-type]
        self.input = StepInput(obs, prev_action, reward, ~valid)  # type: ignore[arg-type]
        return HostRow(action, reward, terminated, truncated, valid, self.episode)

    def render(self) -> np.ndarray:
        """Pictures of where the environments stand, of those that ``HostEnv.open_render`` opened."""
        envs: Any = self._envs
        return np.asarray(envs.render())

    def close(self) -> None:
        self._envs.close()

    def _begin_anew(self, obs: PyTree) -> PyTree:
        """Reset the environments that do not know that their episodes were cut: ``obs`` with their first observations."""
        reset_where = getattr(self._envs, "reset_where", None)
        if reset_where is None:
            raise RuntimeError(
                f"{self._env.name}: an episode went on past max_episode_steps={self._env.max_episode_steps}: set truncated there "
                "in step, or give the opened environments a method reset_where(mask) (see jaxrl.types.HostEnvs)"
            )
        fresh = reset_where(self._cut)
        return jax.tree.map(lambda new, old: np.where(per_row(self._cut, old), new, old), fresh, obs)  # type: ignore[arg-type]


def _copy(obs: PyTree) -> PyTree:
    return jax.tree.map(np.array, obs)

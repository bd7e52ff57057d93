"""Step host environments row by row, as ``rollout.advance`` does for pure ones. Does not import jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.rollout.agents import as_lanes, by_agent, row_as_lanes, together
from jaxrl.rollout.autoreset import StepOutcome, expand_mask, finish_step, first_input, no_episode
from jaxrl.runtime.samplers.host_envs import SeedBatch
from jaxrl.runtime.samplers.received import Receiver
from jaxrl.spaces.action_masks import MASK_KEY, nothing_allowed
from jaxrl.spaces.entries import player_sign
from jaxrl.types import HostEnv, PyTree


def copied(arrays: PyTree) -> PyTree:
    return tree.map_structure(np.array, arrays)


class Stepper:
    """Running host environments, and the state of their episodes. Of several agents each is a lane (``jaxrl.rollout.agents``).

    Arrays are copied on receipt, since an environment may write the next row into the same memory. Episodes end at
    ``max_episode_steps``, whether or not the environments know that limit.
    """

    def __init__(
        self, env: HostEnv, num_envs: int, seed: int | Sequence[int], first_id: int = 0, *, evaluation: bool = False
    ) -> None:
        """
        Args:
          seed: seed or seeds of the environments; with several, ``num_envs`` environments for each, ordered by seed.
          evaluation: open the variant for evaluation. Only first episodes count there, so none is restarted at the limit.
        """
        seeds = [seed] if isinstance(seed, int | np.integer) else seed
        self._env, self._evaluation = env, evaluation
        self._envs = SeedBatch(env, num_envs, seeds, first_id, evaluation=evaluation)
        self._agents = env.num_agents
        self._env_id = np.tile(first_id + np.arange(num_envs), len(seeds)).repeat(max(1, env.num_agents))
        num_lanes = len(self._env_id)
        self._receiver, self._num_envs = Receiver(env), num_lanes // max(1, env.num_agents)
        self.in_background = self._envs.in_background
        """The environments step between ``send`` and ``recv``."""
        self.over: Any = np.zeros(num_lanes, bool)
        self._cut: Any = np.zeros(self._num_envs, bool)
        """Mask of environments whose episodes ended at a limit unknown to them, which must therefore be reset explicitly."""
        self.episode = no_episode(num_lanes)

    def reset(self) -> None:
        """Start all episodes; ``input`` is then that of their first rows."""
        obs = as_lanes(copied(self._receiver.observation(self._envs.reset(), self._num_envs)), self._agents)
        self.input = first_input(obs, self._env.action_space, len(self.over))
        check_mask(self._env, self.input.obs, self.over, self._env_id)

    def step(self, action: np.ndarray) -> StepOutcome:
        """Execute one row; ``input``, ``over`` and ``episode`` are then those after it."""
        self.send(action)
        return self.recv()

    def send(self, action: np.ndarray) -> None:
        """Begin a row, to be completed by ``recv``. Environments that step in the background do so in between."""
        self._action = action
        check_seen(self._env, self.input.obs, action, self._env_id)
        self._envs.send(by_agent(action, self._agents))

    def recv(self, keep: Callable[[PyTree], PyTree] = copied) -> StepOutcome:
        """Return the row begun by ``send``; ``keep`` is applied to its arrays, which the next step may overwrite."""
        reached, action = self._receiver.row(self._envs.recv(), self._num_envs), self._action
        reached = reached._replace(obs=keep(reached.obs), info=keep(reached.info))
        lost = self._lost()
        if self._cut.any():
            reached = reached._replace(obs=self._begin_anew(reached.obs))
            lost = lost | self._lost()
        over, reached = self.over | lost, row_as_lanes(reached, self._agents)
        limit, sign = self._env.max_episode_steps, player_sign(self.input.obs)
        self.input, row = finish_step(over, self.episode, action, reached, limit, self._agents, sign)  # type: ignore[arg-type]
        if not self._evaluation:
            at_limit: Any = np.logical_and(row.truncated, np.logical_not(reached.truncated))
            self._cut = together(at_limit, self._agents).any(-1)
        self.over, self.episode = row.over, row.episode
        check_mask(self._env, self.input.obs, self.over, self._env_id)
        return row

    def _lost(self) -> Any:
        """Return the mask of lanes in environments that were lost and began anew."""
        lost: Any = self._envs.begun_anew()
        return lost.repeat(max(1, self._agents)) if isinstance(lost, np.ndarray) else lost

    def render(self) -> np.ndarray:
        """Return images of the current states, for environments opened by ``HostEnv.open_render``."""
        return self._envs.render()

    def close(self) -> None:
        self._envs.close()

    def _begin_anew(self, obs: PyTree) -> PyTree:
        """Reset the environments that do not know that their episodes were cut; return ``obs`` with their first observations."""
        if not self._envs.can_reset_some:
            raise EnvironmentFailed(
                f"{self._env.name}: an episode continued past max_episode_steps={self._env.max_episode_steps}: set truncated at "
                "the limit in step, or give the opened environments a method reset_where(mask) (see jaxrl.types.HostEnvs)"
            )
        new_obs = self._receiver.observation(self._envs.reset_where(self._cut), self._num_envs)
        mask: Any = self._cut | self._envs.begun_anew()  # their worker process may have been replaced
        return tree.map_structure(lambda new, old: np.where(expand_mask(mask, old), new, old), new_obs, obs)


def check_seen(env: HostEnv, obs: PyTree, action: np.ndarray, env_id: np.ndarray) -> None:
    """Blame the environment, not the policy, for a NaN action if the observation was NaN."""
    if action.dtype.kind != "f" or np.isfinite(action).all():
        return
    lost = ~np.isfinite(action).reshape(len(action), -1).all(1)
    floats = [x.reshape(len(x), -1) for x in map(np.asarray, tree.flatten(obs)) if x.dtype.kind == "f"]
    where = env_id[lost & np.logical_or.reduce([~np.isfinite(x).all(1) for x in floats] or [np.zeros(len(lost), bool)])]
    if where.size:
        named = ", ".join(map(str, np.unique(where)[:8]))
        raise EnvironmentFailed(
            f"{env.name}: the observation of environment {named} is NaN or infinite, and so is the policy's action: fix the "
            "environment, which jaxrl.check_env can check"
        )


def check_mask(env: HostEnv, obs: PyTree, over: np.ndarray, env_id: np.ndarray) -> None:
    """Check that no mask forbids all actions in an unfinished episode. A compiled policy cannot report this and would diverge."""
    nothing: Any = nothing_allowed(obs, env.action_space)
    if nothing is not None and (nothing & ~over).any():
        where = np.unique(env_id[nothing & ~over])
        raise EnvironmentFailed(
            f"{env.name}: {MASK_KEY} forbids every action in environments {', '.join(map(str, where[:8]))}"
            f"{', …' if where.size > 8 else ''}: allow one in each dimension, or end the episode there"
        )

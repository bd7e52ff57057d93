"""Which environments gave numbers that are not finite, where a seed has diverged: found afterwards, at no cost before."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import environment_ids
from jaxrl.replay.stored import ring_rows
from jaxrl.rollout.collect import collect
from jaxrl.types import Agent, AgentState, Algorithm, Array, PyTree, Rollout
from jaxrl.xla.fast_random import fold_in


class Suspects(NamedTuple):
    """bool[B] each. What an action that is not finite led to is not the environment's fault, and does not count."""

    obs: Any
    """An observation is NaN or infinite."""
    reward: Any

    def union(self, other: Suspects) -> Suspects:
        return Suspects(self.obs | other.obs, self.reward | other.reward)

    def in_words(self) -> str | None:
        """``environments 3, 5 gave observations``; None where there is none."""
        parts = []
        for what, mask in (("observation", self.obs), ("reward", self.reward)):
            ids = np.flatnonzero(mask).tolist()
            if ids:
                shown = ", ".join(map(str, ids[:8])) + ", …" * (len(ids) > 8)
                parts.append(f"environment{'s' * (len(ids) > 1)} {shown} gave {what}s that are NaN or infinite")
        return " and ".join(parts) or None


class Lookout:
    """Remembers what rollouts of host environments, which cannot be made again, show of seeds that broke by them."""

    def __init__(self, num_seeds: int, num_envs: int) -> None:
        self.found = Suspects(*np.zeros((2, num_seeds, num_envs), bool))

    def look(self, rollout: Rollout, broken: np.ndarray) -> None:
        """
        Args:
          rollout: of all seeds, or a part of one, [num_seeds, ...].
          broken: bool[num_seeds], who broke by it.
        """
        for i in map(int, np.flatnonzero(broken)):
            one = jax.tree.map(lambda x, i=i: np.asarray(x[i]), rollout)
            for mask, here in zip(self.found, of_rollout(one), strict=True):
                mask[i] = False
                mask[i, one.env_id] = here


def of_rollout(rollout: Rollout) -> Suspects:
    """[T, B] -> [B]. An observation came of the action before it, which the policy was shown beside it."""
    obs = _broken(rollout.inputs.obs, 2) & ~_broken(rollout.inputs.prev_action, 2)
    reward = _broken(rollout.reward, 2) & ~_broken(rollout.action, 2)
    return Suspects(obs.any(0), reward.any(0))


def of_replay(algorithm: Algorithm, learner: Any) -> Suspects | None:
    """Of the rows that a learner stores, [B]; None where it stores none, or not as this package does."""
    found = None
    for name in algorithm.buffers:
        rows = ring_rows(getattr(learner, name))
        if rows is None or not hasattr(rows, "obs"):
            continue
        acted = _broken(rows.action, 2)
        obs, reward = _broken(rows.obs, 2) & ~jnp.roll(acted, 1, 0), _broken(rows.reward, 2) & ~acted
        here = Suspects(obs.any(0), reward.any(0))
        found = here if found is None else found.union(here)
    return found


def of_next_rollout(agent: Agent, state: AgentState) -> Suspects:
    """Of a pure environment: of the rollout of a state's next iteration, collected as it was then, and of what is stored."""
    algorithm: Algorithm = agent.algorithm
    env: Any = agent.env
    env_id = environment_ids(state.actor.done.shape[0], agent.axis_name)
    policy, key = algorithm.policy(state.learner), fold_in(state.key, state.iteration)
    _, rollout, _ = collect(algorithm, env, policy, state.actor, state.env_params, env_id, key, agent.rollout_length)
    stored = of_replay(algorithm, state.learner)
    return of_rollout(rollout) if stored is None else of_rollout(rollout).union(stored)


def _broken(values: PyTree, axes: int) -> Array:
    """bool[the first ``axes``]: where some number is not finite. Integers always are."""
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(values)]
    shape = leaves[0].shape[:axes]
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
    found = jnp.zeros(shape, bool)
    for x in floats:
        found |= ~jnp.isfinite(x).reshape(*shape, -1).all(-1)
    return found

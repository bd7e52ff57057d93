"""Find the environments that produced non-finite numbers, after a seed has diverged. Costs nothing before that."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import lane_ids
from jaxrl.replay.stored import ring_rows
from jaxrl.rollout.agents import together
from jaxrl.rollout.collect import collect
from jaxrl.types import Agent, AgentState, Algorithm, Array, PyTree, Rollout
from jaxrl.xla.fast_random import fold_in


class Suspects(NamedTuple):
    """Masks bool[B] of environments, or of the agents in them. The results of a non-finite action are not the environment's fault
    and do not count."""

    obs: Any
    """An observation is NaN or infinite."""
    reward: Any

    def union(self, other: Suspects) -> Suspects:
        return Suspects(self.obs | other.obs, self.reward | other.reward)

    def record(self, rollout: Rollout, broken: np.ndarray) -> None:
        """Record in these masks, [num_seeds, B], the suspects of the seeds that a rollout or a part of it, [num_seeds, ...],
        broke, bool[num_seeds]: host environments cannot repeat it."""
        for i in map(int, np.flatnonzero(broken)):
            of_seed = jax.tree.map(lambda x, i=i: np.asarray(x[i]), rollout)
            for mask, found in zip(self, of_rollout(of_seed), strict=True):
                mask[i] = False
                mask[i, of_seed.env_id] = found

    def in_words(self, num_agents: int = 0) -> str | None:
        """Return a text such as ``environments 3, 5 gave observations that are NaN or infinite``, or None if there are no
        suspects."""
        parts = []
        for kind, mask in (("observation", self.obs), ("reward", self.reward)):
            ids = np.flatnonzero(together(mask, num_agents).any(-1)).tolist()
            if ids:
                shown = ", ".join(map(str, ids[:8])) + ", …" * (len(ids) > 8)
                parts.append(f"environment{'s' * (len(ids) > 1)} {shown} gave {kind}s that are NaN or infinite")
        return " and ".join(parts) or None


def of_rollout(rollout: Rollout) -> Suspects:
    """Return the suspects of a rollout, [T, B] -> [B]. An observation results from the previous action, stored beside it."""
    obs = _broken(rollout.inputs.obs, 2) & ~_broken(rollout.inputs.prev_action, 2)
    reward = _broken(rollout.reward, 2) & ~_broken(rollout.action, 2)
    return Suspects(obs.any(0), reward.any(0))


def of_replay(algorithm: Algorithm, learner: Any) -> Suspects | None:
    """Return the suspects among the stored rows of a learner, [B]; None if it has none in one of jaxrl's replay buffers."""
    found = None
    for name in algorithm.buffers:
        rows = ring_rows(getattr(learner, name))
        if rows is None or not hasattr(rows, "obs"):
            continue
        acted = _broken(rows.action, 2)
        obs, reward = _broken(rows.obs, 2) & ~jnp.roll(acted, 1, 0), _broken(rows.reward, 2) & ~acted
        suspects = Suspects(obs.any(0), reward.any(0))
        found = suspects if found is None else found.union(suspects)
    return found


def of_next_rollout(agent: Agent, state: AgentState) -> Suspects:
    """Return the suspects of a pure environment, found by repeating the rollout of the next iteration, and in stored rows.

    Populations have none: a member whose observations or returns are not finite does not break a seed. Datasets have none: their
    rows were checked.
    """
    algorithm: Algorithm = agent.algorithm
    if agent.episodes or agent.is_offline:
        devices = 1 if agent.axis_name is None else jax.lax.axis_size(agent.axis_name)
        return Suspects(*jnp.zeros((2, agent.num_envs // devices), bool))
    env: Any = agent.env
    env_id = lane_ids(state.actor.done.shape[0], agent.axis_name)
    policy, key = algorithm.policy(state.learner), fold_in(state.key, state.iteration)
    _, rollout, _ = collect(algorithm, env, policy, state.actor, state.env_params, env_id, key, agent.rollout_length)
    stored = of_replay(algorithm, state.learner)
    return of_rollout(rollout) if stored is None else of_rollout(rollout).union(stored)


def _broken(values: PyTree, axes: int) -> Array:
    """Return bool[the first ``axes``], True where a number is not finite. Integers are always finite."""
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(values)]
    shape = leaves[0].shape[:axes]
    found = jnp.zeros(shape, bool)
    for x in leaves:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            found |= ~jnp.isfinite(x).reshape(*shape, -1).all(-1)
    return found

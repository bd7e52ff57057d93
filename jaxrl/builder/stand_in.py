"""Placeholder environments: spaces without an environment, with which an agent can be built to act."""

from __future__ import annotations

import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.spaces.entries import players_of
from jaxrl.spaces.goals import ACHIEVED, DESIRED, has_goals
from jaxrl.types import ComputeRewardFn, HostEnv, HostEnvs


def stand_in(name: str, observation_space: spaces.Space, action_space: spaces.Space) -> HostEnv:
    """Return a placeholder environment that only has spaces: enough to build an agent without the real environment."""

    def refuse(num_envs: int, seed: int, first_id: int = 0) -> HostEnvs:
        raise NotImplementedError(f"only the spaces of {name} are available: its environment was not loaded")

    reward, players = _reward_of(observation_space), players_of(observation_space)
    return HostEnv(refuse, observation_space, action_space, name=name, compute_reward=reward, players=players)


def _reward_of(observation_space: spaces.Space) -> ComputeRewardFn | None:
    """Return a placeholder with the types of ``compute_reward`` for goal environments, else None.

    Agents with hindsight replay cannot be built without it. It is never used, since nothing is learnt here.
    """
    if not has_goals(observation_space) or observation_space[ACHIEVED] != observation_space[DESIRED]:  # type: ignore[index]
        return None
    return lambda achieved, desired: (jnp.zeros(()), jnp.zeros((), bool))

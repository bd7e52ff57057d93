"""Host environments made from pure ones, so that the host loop can run the same probes as the fused program."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.rollout.agents import as_lanes, by_agent, lanes_of
from jaxrl.rollout.collect import advance, init_actor
from jaxrl.types import Algorithm, Env, HostEnv, HostStep


class _Running:
    """NEXT_STEP rows of ``env``, as a C++ environment returns them."""

    def __init__(self, env: Env, num_envs: int, seed: int, first_id: int = 0) -> None:
        self.key, self.time, self.num_envs, self.agents = jax.random.key(seed), 0, num_envs, env.num_agents
        env_id = lanes_of(first_id + jnp.arange(num_envs, dtype=jnp.int32), env.num_agents)
        memoryless: Any = Algorithm(*[None] * 4, initial_carry=lambda batch: ())  # type: ignore[list-item]
        self._init = jax.jit(lambda key: init_actor(memoryless, env, key, env_id, env.params))

        @jax.jit
        def step(key: Any, actor: Any, action: Any) -> Any:
            return advance(env, actor, (), action, env.params, env_id, *jax.random.split(key))

        self._step = step

    def reset(self) -> Any:
        self.actor = self._init(self.key)
        return by_agent(jax.tree.map(np.asarray, self.actor.input.obs), self.agents)

    def step(self, action: Any) -> HostStep:
        self.time += 1
        lanes = as_lanes(np.asarray(action), self.agents)
        self.actor, row = self._step(jax.random.fold_in(self.key, self.time), self.actor, lanes)
        obs, row = jax.tree.map(np.asarray, (self.actor.input.obs, row))
        return by_agent(HostStep(obs, row.reward, row.terminated, row.truncated, row.info), self.agents)

    def close(self) -> None:
        del self.actor


def hosted(env: Env) -> HostEnv:
    """Return ``env`` as a HostEnv."""
    return HostEnv(
        partial(_Running, env),
        env.observation_space,
        env.action_space,
        name=f"hosted:{env.name}",
        max_episode_steps=env.max_episode_steps,
        num_agents=env.num_agents,
        players=env.players,
    )


class Clock:
    """Observes the time since the reset, always in the same array. Rewards are 1. Episodes end only at ``limit``."""

    limit: int | None = None

    def __init__(self, num_envs: int, seed: int) -> None:
        self.time = np.zeros((num_envs, 1), np.float32)
        self.done = np.zeros(num_envs, bool)

    def reset(self) -> Any:
        self.time[:] = 0
        return self.time

    def step(self, action: Any) -> HostStep:
        self.time += 1
        self.time[self.done] = 0
        no, reward = np.zeros(len(self.time), bool), np.where(self.done, 0, 1).astype(np.float32)
        self.done = no if self.limit is None else self.time[:, 0] >= self.limit
        return HostStep(self.time, reward, no, self.done)

    def close(self) -> None:
        pass


class Resettable(Clock):
    def reset_where(self, mask: Any) -> Any:
        self.time[mask] = 0
        return self.time


class Limited(Clock):
    limit = 3


def clock(kind: Any = Clock, max_episode_steps: int | None = None) -> HostEnv:
    space = spaces.Box(0, np.inf, (1,))
    return HostEnv(kind, space, spaces.Discrete(2), name="clock", max_episode_steps=max_episode_steps)

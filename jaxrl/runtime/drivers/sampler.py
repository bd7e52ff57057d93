"""Samplers: what collects rollouts on the host, for a learner that does not know how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.rollout import Row, episode_metrics, to_rollout
from jaxrl.runtime.drivers.stepping import Stepper
from jaxrl.types import Agent, HostEnv, Key, Metrics, Policy, PyTree, Rollout


class Sampler(Protocol):
    """Collects rollouts for one seed's learner, the warm-up's included, in environments of its own.

    Where those stand is no part of a run's state: a run that goes on makes another sampler, with another seed.
    """

    def collect(self, policy: Policy, key: Key, /) -> tuple[Rollout, Metrics]:
        """One rollout, that of ``rollout.collect`` for this ``policy`` and the iteration's ``key``, and its episodes' metrics."""

    def close(self) -> None:
        """Release the environments. Nothing is called afterwards."""


SamplerFn = Callable[[Agent, int], Sampler]
"""Starts to sample for an agent, with a seed: its environments are seeded, and begin."""


class HostSampler:
    """Samples in this process, with NumPy between the calls of ``act``."""

    def __init__(self, agent: Agent, seed: int, first_id: int = 0, num_envs: int | None = None) -> None:
        """``num_envs`` environments (default: the agent's), of which the first is number ``first_id`` of the seed's."""
        num_envs = agent.num_envs if num_envs is None else num_envs
        self.num_rows = agent.rollout_length
        self.envs = Stepper(host_env(agent), num_envs, seed, first_id)
        self.env_id = first_id + jnp.arange(num_envs, dtype=jnp.int32)
        self.act = jax.jit(partial(agent.algorithm.act, explore=True))
        self.carry = agent.algorithm.initial_carry(num_envs)
        self.metrics = jax.jit(episode_metrics)
        self.envs.reset()

    def collect(self, policy: Policy, key: Key) -> tuple[Rollout, Metrics]:
        first_carry, rows = self.carry, []
        for row_key in _row_keys(key, self.num_rows):
            now = self.envs.input
            self.carry, action, extras = self.act(policy, self.carry, now, self.env_id, row_key)
            rows.append(Row(now, action, extras, self.envs.step(np.asarray(action))))
        stacked: Row = stack(rows)
        inputs = jax.tree.map(lambda x, last: np.concatenate([x, last[None]]), stacked.input, self.envs.input)
        version: Any = np.full(self.env_id.shape, policy.version, np.int32)
        return to_rollout(stacked, inputs, first_carry, self.env_id, version), self.metrics(stacked.outcome)

    def close(self) -> None:
        self.envs.close()


def host_env(agent: Agent) -> HostEnv:
    """The agent's environment, if it runs on the host."""
    if not isinstance(agent.env, HostEnv):
        raise TypeError(f"{agent.env.name} is a pure environment: agent.step collects and learns in one program")
    return agent.env


@partial(jax.jit, static_argnums=1)
def _row_keys(key: Key, num_rows: int) -> Key:
    """The keys with which rows act: the first of each row's three in ``rollout.collect``."""
    return jax.random.split(key, (num_rows, 3))[:, 0]


def stack(trees: Sequence[PyTree]) -> Any:
    """Trees of one structure as one, with a new first axis, in NumPy."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

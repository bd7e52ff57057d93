"""Samplers: what collects rollouts on the host, for a learner that does not know how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.rollout import Row, episode_metrics, to_rollout
from jaxrl.runtime.drivers.buffer import RolloutBuffer
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


INPUTS, ROWS = "inputs", "rows"
"""In the memory of a rollout: what the policy saw, with one row more; and what each row came to."""


class HostSampler:
    """Samples in this process, with NumPy between the calls of ``act``."""

    def __init__(self, agent: Agent, seed: int, first_id: int = 0, num_envs: int | None = None) -> None:
        """``num_envs`` environments (default: the agent's), of which the first is number ``first_id`` of the seed's."""
        self.num_envs = agent.num_envs if num_envs is None else num_envs
        self.num_rows = agent.rollout_length
        self.envs = Stepper(host_env(agent), self.num_envs, seed, first_id)
        self.env_id = first_id + jnp.arange(self.num_envs, dtype=jnp.int32)
        act = partial(agent.algorithm.act, explore=True)
        self.act = jax.jit(lambda policy, carry, now, env_id, keys, t: act(policy, carry, now, env_id, keys[t]))
        self.carry = agent.algorithm.initial_carry(self.num_envs)
        self.metrics = jax.jit(episode_metrics)
        self.envs.reset()

    def collect(self, policy: Policy, key: Key) -> tuple[Rollout, Metrics]:
        buffer, first_carry = RolloutBuffer(self.num_rows, self.num_envs), self.carry
        keys = _row_keys(key, self.num_rows)
        buffer.write(INPUTS, (0,), self.envs.input, more_rows=1)
        for t in range(self.num_rows):
            now = buffer.read(INPUTS, (t,))
            self.carry, action, extras = self.act(policy, self.carry, now, self.env_id, keys, np.int32(t))
            outcome = self.envs.step(np.asarray(action), keep=_as_it_is)
            buffer.write(ROWS, (t,), (action, extras, outcome))
            buffer.write(INPUTS, (t + 1,), self.envs.input)
        inputs = buffer.read(INPUTS)
        rows = Row(inputs, *buffer.read(ROWS))
        self.envs.input = buffer.read(INPUTS, (self.num_rows,))
        version: Any = np.full(self.env_id.shape, policy.version, np.int32)
        return to_rollout(rows, inputs, first_carry, self.env_id, version), self.metrics(rows.outcome)

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


def _as_it_is(tree: PyTree) -> PyTree:
    """Of what is written into a rollout before the environments take their next step."""
    return tree


def stack(trees: Sequence[PyTree]) -> Any:
    """Trees of one structure as one, with a new first axis, in NumPy."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

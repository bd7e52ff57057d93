"""Samplers: what collects rollouts on the host, for a learner that does not know how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.rollout import Row, episode_metrics, to_rollout
from jaxrl.runtime.drivers.buffer import Index, RolloutBuffer
from jaxrl.runtime.drivers.seeds import over_seeds
from jaxrl.runtime.drivers.stepping import Stepper
from jaxrl.types import Agent, Algorithm, Array, HostEnv, Key, Metrics, Policy, PyTree, Rollout, StepInput


class Sampler(Protocol):
    """Collects rollouts for the learners of a run's seeds, the warm-up's included, in environments of its own.

    What it takes and gives has the leading axis [num_seeds]. Where the environments stand is no part of a run's state: a run that
    goes on makes another sampler, with other seeds.
    """

    def collect(self, policy: Policy, key: Key, /) -> tuple[Rollout, Metrics]:
        """One rollout, that of ``rollout.collect`` for this ``policy`` and the iteration's ``key``, and its episodes' metrics."""

    def close(self) -> None:
        """Release the environments. Nothing is called afterwards."""


SamplerFn = Callable[[Agent, Sequence[int]], Sampler]
"""Starts to sample for an agent, with seeds: their environments are seeded, and begin."""


INPUTS, ROWS = "inputs", "rows"
"""In the memory of a rollout: what the policy saw, with one row more; and what each row came to."""


class HostSampler:
    """Samples in this process, with NumPy between the calls of ``act``, which acts for all seeds at once."""

    def __init__(self, agent: Agent, seeds: int | Sequence[int], first_id: int = 0, num_envs: int | None = None) -> None:
        """
        Args:
          seeds: of a run's learners; of a single one, all that is taken and given has no axis for seeds.
          first_id: ``num_envs`` environments (default: the agent's) of each seed, of which the first is its number ``first_id``.
        """
        single = isinstance(seeds, int | np.integer)
        self.lead: tuple[int, ...] = () if single else (len(seeds),)  # type: ignore[arg-type]
        over = over_seeds(*self.lead or (None,))
        self.num_envs = agent.num_envs if num_envs is None else num_envs
        self.num_rows = agent.rollout_length
        self.envs = Stepper(host_env(agent), self.num_envs, seeds, first_id)
        self.env_id = first_id + jnp.arange(self.num_envs, dtype=jnp.int32)
        self.act = jax.jit(over(partial(_act, agent.algorithm), in_axes=(0, 0, 0, None, 0, None)))
        self.row_keys = jax.jit(over(partial(_row_keys, num_rows=self.num_rows)))
        self.metrics = jax.jit(over(episode_metrics))
        carry = agent.algorithm.initial_carry(self.num_envs)
        self.carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (*self.lead, *x.shape)), carry)
        self.envs.reset()
        self.now = self._of_seeds(self.envs.input)

    def collect(self, policy: Policy, key: Key) -> tuple[Rollout, Metrics]:
        buffer, first_carry = RolloutBuffer(self.lead, self.num_rows, self.num_envs), self.carry
        keys = self.row_keys(key)
        buffer.write(INPUTS, self._row(0), self.now, more_rows=1)
        for t in range(self.num_rows):
            now = buffer.read(INPUTS, self._row(t))
            self.carry, action, extras = self.act(policy, self.carry, now, self.env_id, keys, np.int32(t))
            action = np.asarray(action)
            outcome = self.envs.step(action.reshape(-1, *action.shape[len(self.lead) + 1 :]), keep=_as_it_is)
            buffer.write(ROWS, self._row(t), (action, extras, self._of_seeds(outcome)))
            buffer.write(INPUTS, self._row(t + 1), self._of_seeds(self.envs.input))
        self.now = buffer.read(INPUTS, self._row(self.num_rows))
        inputs = buffer.read(INPUTS)
        rows = Row(inputs, *buffer.read(ROWS))
        env_id: Any = np.broadcast_to(self.env_id, (*self.lead, self.num_envs))
        version: Any = np.broadcast_to(np.asarray(policy.version, np.int32)[..., None], env_id.shape)
        return to_rollout(rows, inputs, first_carry, env_id, version), self.metrics(rows.outcome)

    def close(self) -> None:
        self.envs.close()

    def _row(self, t: int) -> Index:
        """Where row t of all environments is."""
        return (*(slice(None) for _ in self.lead), t)

    def _of_seeds(self, batch: PyTree) -> Any:
        """What the environments of all seeds give in one batch, with the axis of seeds."""
        return jax.tree.map(lambda x: np.asarray(x).reshape(*self.lead, self.num_envs, *x.shape[1:]), batch)


def host_env(agent: Agent) -> HostEnv:
    """The agent's environment, if it runs on the host."""
    if not isinstance(agent.env, HostEnv):
        raise TypeError(f"{agent.env.name} is a pure environment: agent.step collects and learns in one program")
    return agent.env


def _row_keys(key: Key, num_rows: int) -> Key:
    """The keys with which rows act: the first of each row's three in ``rollout.collect``."""
    return jax.random.split(key, (num_rows, 3))[:, 0]


def _act(
    algorithm: Algorithm, policy: Policy, carry: PyTree, now: StepInput, env_id: Array, keys: Key, t: Array
) -> tuple[PyTree, Array, PyTree]:
    """Acts on row t with its key."""
    return algorithm.act(policy, carry, now, env_id, keys[t], explore=True)


def _as_it_is(tree: PyTree) -> PyTree:
    """Of what is written into a rollout before the environments take their next step."""
    return tree


def stack(trees: Sequence[PyTree]) -> Any:
    """Trees of one structure as one, with a new first axis, in NumPy."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

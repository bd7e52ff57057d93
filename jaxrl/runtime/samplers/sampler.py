"""Samplers: interface of rollout collection on the host, and the default, ``HostSampler``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.builder.spec import algorithm_name
from jaxrl.rollout.collect import episode_metrics, to_rollout
from jaxrl.runtime.samplers.diagnostics import Stopwatch
from jaxrl.runtime.samplers.rollout_buffer import Index, RolloutBuffer
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.runtime.system.compiling import CompiledCall
from jaxrl.types import Agent, Algorithm, Array, HostEnv, Key, Metrics, Policy, PyTree, Rollout, StepInput
from jaxrl.xla.seed_axis import over_seeds


class Sampler(Protocol):
    """Collects rollouts, including those of the warm-up, in its own environments for the learners of a run's seeds.

    Arguments and results have the leading axis [num_seeds]. The states of the environments are not part of the run's state: a
    resumed run creates another sampler, with other seeds.
    """

    def collect(self, policy: Policy, key: Key, /) -> tuple[Rollout, Metrics]:
        """Collect one rollout as ``rollout.collect`` does for this ``policy`` and the iteration's ``key``; return it with
        episode metrics."""

    def close(self) -> None:
        """Release the environments. No method is called afterwards."""

    # Optional attribute: `watch`, a Stopwatch, if the sampler times its parts.


SamplerFn = Callable[[Agent, Sequence[int]], Sampler]
"""Creates a sampler for an agent and seeds: opens environments with these seeds and resets them."""


INPUTS, ACTED, CAME = "inputs", "acted", "came"
"""Names in a rollout's memory: policy inputs, with one additional row; actions, with extras; outcomes."""


class EnvGroup:
    """Environments that step together: the same ones for each seed, [*lead, B], covering ``part`` of a rollout's lanes."""

    def __init__(self, agent: Agent, seeds: int | Sequence[int], first_id: int, part: slice, watch: Stopwatch) -> None:
        """
        Args:
          first_id: id of the first environment of the rollout.
        """
        self.watch = watch
        self.part, self.num_lanes = part, part.stop - part.start
        self.lead: tuple[int, ...] = np.shape(seeds)[:1]
        env, each = host_env(agent), max(1, agent.env.num_agents)
        self.envs = Stepper(env, self.num_lanes // each, seeds, first_id + part.start // each)
        self.env_id = first_id * each + part.start + jnp.arange(self.num_lanes, dtype=jnp.int32)
        carry = agent.algorithm.initial_carry(self.num_lanes)
        self.carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (*self.lead, *x.shape)), carry)

    def reset(self) -> None:
        """Reset the environments; ``next_input`` is the next input of the policy."""
        self.envs.reset()
        self.next_input = self._of_seeds(self.envs.input)

    def begin(self, act: Callable[..., Any], buffer: RolloutBuffer, t: int, policy: Policy, keys: Key) -> None:
        """Act in row t, and start stepping the environments."""
        with self.watch("inference"):
            inputs = buffer.read(INPUTS, self.row(t))
            self.carry, action, extras = act(policy, self.carry, inputs, self.env_id, keys, np.int32(t))
            action = np.asarray(action)
        with self.watch("environments"):
            self.envs.send(action.reshape(-1, *action.shape[len(self.lead) + 1 :]))
        buffer.write(ACTED, self.row(t), (action, extras))

    def finish(self, buffer: RolloutBuffer, t: int) -> None:
        """Store the outcome of row t. It is stored before the environments step again, so their arrays need not be copied."""
        with self.watch("environments"):
            outcome = self.envs.recv(keep=lambda arrays: arrays)
        buffer.write(CAME, self.row(t), self._of_seeds(outcome))
        buffer.write(INPUTS, self.row(t + 1), self._of_seeds(self.envs.input))

    def row(self, t: int) -> Index:
        """Return the index of row t in a rollout's memory."""
        return (*(slice(None) for _ in self.lead), t, self.part)

    def _of_seeds(self, batch: PyTree) -> Any:
        """Reshape a batch over the lanes of all seeds to have an axis of seeds."""
        return jax.tree.map(lambda x: np.asarray(x).reshape(*self.lead, self.num_lanes, *x.shape[1:]), batch)


class HostSampler:
    """Samples in this process, with NumPy between calls of ``act``, which acts for all seeds at once.

    All environments step together, or two halves in turn: the policy acts in one half while the other steps. The rollouts are
    the same.
    """

    def __init__(
        self, agent: Agent, seed: int | Sequence[int], first_id: int = 0, num_envs: int | None = None, *, num_groups: int = 1
    ) -> None:
        """
        Args:
          seed: seed of one learner, or seeds of several: then arguments and results have a leading axis for them.
          first_id: index, among the environments of each seed, of the first of the ``num_envs`` (default: the agent's) opened.
          num_groups: 2 for halves; ``num_envs`` must then be even.

        Raises:
          TypeError: halves are requested of environments that do not step in the background.
        """
        self.lead: tuple[int, ...] = np.shape(seed)[:1]
        over = over_seeds(*self.lead or (None,))
        each, num_envs = max(1, agent.env.num_agents), agent.num_envs if num_envs is None else num_envs
        self.num_lanes = num_envs * each
        self.num_rows = agent.rollout_length
        self.env_id = first_id * each + jnp.arange(self.num_lanes, dtype=jnp.int32)
        self.act = CompiledCall(jax.jit(over(partial(_act, agent.algorithm), in_axes=(0, 0, 0, None, 0, None))))
        self.row_keys = jax.jit(over(partial(row_keys, num_rows=self.num_rows)))
        self.metrics = jax.jit(over(partial(episode_metrics, num_agents=agent.env.num_agents)))
        self.watch, self.groups = Stopwatch(), list[EnvGroup]()
        size = num_envs // num_groups * each
        try:
            for start in range(0, self.num_lanes, size):
                self.groups.append(EnvGroup(agent, seed, first_id, slice(start, start + size), self.watch))
                if num_groups > 1 and not self.groups[0].envs.in_background:
                    raise not_in_background(agent, "alternating")
            for group in self.groups:
                group.reset()
        except BaseException:
            self.close()
            raise

    def collect(self, policy: Policy, key: Key) -> tuple[Rollout, Metrics]:
        buffer = RolloutBuffer(self.lead, self.num_rows, self.num_lanes)
        first_carry = self.fill(buffer, policy, key)
        env_id: Any = np.broadcast_to(self.env_id, (*self.lead, self.num_lanes))
        version: Any = np.broadcast_to(np.asarray(policy.version, np.int32)[..., None], env_id.shape)
        outcome = buffer.read(CAME)
        rollout = to_rollout(buffer.read(INPUTS), buffer.read(ACTED), outcome, first_carry, env_id, version)
        return rollout, self.metrics(outcome)

    def fill(
        self, buffer: RolloutBuffer, policy: Policy, key: Key, first: int = 0, on_row: Callable[[], object] = lambda: None
    ) -> PyTree:
        """Collect into a rollout's memory, from row ``first`` on; return the carry before that row, [*lead, B].

        Args:
          on_row: called after each row.
        """
        keys, first_carry = self.row_keys(key), self._carry()
        for group in self.groups:
            buffer.write(INPUTS, group.row(first), group.next_input, more_rows=1)
        for t in range(first, self.num_rows):
            for group in self.groups:
                if t > first:
                    group.finish(buffer, t - 1)
                group.begin(self.act, buffer, t, policy, keys)
            on_row()
        for group in self.groups:
            if first < self.num_rows:
                group.finish(buffer, self.num_rows - 1)
            # A copy, since the memory may be reused.
            group.next_input = jax.tree.map(np.array, buffer.read(INPUTS, group.row(self.num_rows)))
        return first_carry

    def close(self) -> None:
        for group in self.groups:
            group.envs.close()

    def _carry(self) -> PyTree:
        """Return the carry of all environments."""
        first, *others = (group.carry for group in self.groups)
        return jax.tree.map(lambda *x: np.concatenate(x, len(self.lead)), first, *others) if others else first


def not_in_background(agent: Agent, sampler: str) -> TypeError:
    """Return the error for environments without ``send`` and ``recv``."""
    return TypeError(
        f"sampler={sampler!r} needs environments that step in the background, and {agent.env.name} does not: use sampler='sync', "
        "or batches with send and recv (see jaxrl.types.HostEnvs), as envpool's are, and gymnasium's with num_workers=2 or more"
    )


def host_env(agent: Agent) -> HostEnv:
    """Return the agent's environment. Raise TypeError if it is not on the host, and ValueError if the agent plans with it."""
    if not isinstance(agent.env, HostEnv):
        raise TypeError(f"{agent.env.name} is a pure environment: agent.step collects and learns in one program")
    if agent.algorithm.plans:
        raise ValueError(
            f"{algorithm_name(agent.spec)} plans with the environment itself, and {agent.env.name} is on the host: use an "
            "environment written in JAX"
        )
    return agent.env


def row_keys(key: Key, num_rows: int) -> Key:
    """Return the keys for acting, one per row: the first of each row's three in ``rollout.collect``."""
    return jax.random.split(key, (num_rows, 3))[:, 0]


def _act(
    algorithm: Algorithm, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, keys: Key, t: Array
) -> tuple[PyTree, Array, PyTree]:
    """Act in row t with its key."""
    return algorithm.act(policy, carry, inputs, env_id, keys[t], explore=True)


def stack(trees: Sequence[PyTree]) -> Any:
    """Stack trees of the same structure along a new first axis, in NumPy."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

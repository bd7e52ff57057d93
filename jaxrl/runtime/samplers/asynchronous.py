"""Asynchronous sampler: acts in the environments that are ready, while the others step."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tree

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.rollout.autoreset import StepOutcome, finish_step, first_input, no_episode
from jaxrl.rollout.collect import episode_metrics, to_rollout
from jaxrl.runtime.samplers.diagnostics import Stopwatch
from jaxrl.runtime.samplers.host_envs import begun_anew, can_send, close_envs, open_envs
from jaxrl.runtime.samplers.received import Receiver
from jaxrl.runtime.samplers.rollout_buffer import RolloutBuffer
from jaxrl.runtime.samplers.sampler import ACTED, CAME, INPUTS, host_env, not_in_background, row_keys, stack
from jaxrl.runtime.samplers.stepper import check_mask, check_seen, copied
from jaxrl.runtime.system.compiling import CompiledCall
from jaxrl.types import Agent, Algorithm, Array, EpisodeStatistics, HostStep, Key, Metrics, Policy, PyTree, Rollout, StepInput

START = "start"
"""Name in a rollout's memory for its start: the parameters' version and the carry, one row only."""


class AsyncSampler:
    """Acts in the half of the environments that is ready first, while the other half steps.

    Rows are stored by ``env_id``. Fast environments continue while the slowest finishes its rollout: their rows are the first of
    the next one, so ``Rollout.version`` is that of the oldest parameters that acted. Environments that have also finished the
    next rollout wait for the others. Which environments are ready depends on timing, so two runs differ. Random numbers for an
    environment are derived from (key, row, env_id), as elsewhere.
    """

    def __init__(self, agent: Agent, seed: int | Sequence[int]) -> None:
        """Open and reset the environments, which must step in the background; ``seed`` as for ``HostSampler``."""
        self.single = not np.shape(seed)
        self.num_rows = agent.rollout_length
        self.act = CompiledCall(jax.jit(partial(_act, agent.algorithm)))
        self.row_keys = jax.jit(partial(row_keys, num_rows=self.num_rows))
        self.metrics = jax.jit(episode_metrics)
        self.watch, self.lanes = Stopwatch(), list[Lane]()
        try:
            for seed_of_lane in np.atleast_1d(seed):
                self.lanes.append(Lane(agent, int(seed_of_lane), self.watch))
            for lane in self.lanes:
                lane.reset()
        except BaseException:
            self.close()
            raise

    def collect(self, policy: Policy, key: Key) -> tuple[Rollout, Metrics]:
        policies = [policy] if self.single else [jax.tree.map(lambda x, i=i: x[i], policy) for i in range(len(self.lanes))]
        keys = [self.row_keys(k) for k in ([key] if self.single else key)]
        versions = [int(p.version) for p in policies]
        while unfinished := [i for i, lane in enumerate(self.lanes) if (lane.at < self.num_rows).any()]:
            for i in unfinished:
                self.lanes[i].turn(partial(self.act, policies[i]), keys[i], versions[i])
        rollouts = [lane.take() for lane in self.lanes]
        metrics = [self.metrics(outcome) for _, outcome in rollouts]
        if self.single:
            return rollouts[0][0], metrics[0]
        return stack([rollout for rollout, _ in rollouts]), stack(metrics)

    def close(self) -> None:
        for lane in self.lanes:
            close_envs(lane.env, lane.envs)


class Lane:
    """Environments of one seed, each at its own row."""

    def __init__(self, agent: Agent, seed: int, watch: Stopwatch) -> None:
        self.watch = watch
        self.env, self.num_envs, self.num_rows = host_env(agent), agent.num_envs, agent.rollout_length
        self.envs = open_envs(self.env, self.num_envs, seed, batch_size=self.num_envs // 2)
        self.in_any_parts = "batch_size" in inspect.signature(self.env.open).parameters
        """True if any half of the environments may begin rows together, False if only those that one ``recv`` returned may."""
        if not can_send(self.envs):
            self.envs.close()
            raise not_in_background(agent, "async")
        self.env_id, self.receiver = np.arange(self.num_envs, dtype=np.int32), Receiver(self.env)
        self.done, self.episode = np.zeros(self.num_envs, bool), no_episode(self.num_envs)
        self.carry = agent.algorithm.initial_carry(self.num_envs)
        self.at = np.zeros(self.num_envs, int)
        """Next row of each environment, counted from the start of the current rollout."""
        self.ready: list[tuple[np.ndarray, StepInput]] = []
        """Environments that one ``recv`` returned together, with the next inputs of the policy."""
        self.buffers: list[RolloutBuffer] = []
        """Memory of the current rollout, and of later ones that fast environments have reached."""

    def reset(self) -> None:
        obs = self.receiver.observation(self.envs.reset(), self.num_envs)
        inputs = first_input(copied(obs), self.env.action_space, self.num_envs)
        self.action = np.zeros_like(inputs.prev_action)
        self._see(self.env_id, inputs)

    def turn(self, act: Any, keys: Key, version: int) -> None:
        """Act in ready environments, then wait until some are ready again."""
        for env_id, inputs in self._half_to_begin() if self.in_any_parts else self._parts_to_begin():
            self._begin(act, keys, version, env_id, inputs)
        with self.watch("environments"):
            ready_ids, reached = self.envs.recv()
        self._receive(ready_ids, reached)

    def _parts_to_begin(self) -> list[tuple[np.ndarray, StepInput]]:
        """Return the ready parts, except those with an environment that has finished the next rollout. A part with an
        environment that has not finished this rollout never waits, since that environment advances only with its part."""
        finished = [self.at[env_id] // self.num_rows for env_id, _ in self.ready]
        waits = [bool((rollouts >= 2).any() and (rollouts >= 1).all()) for rollouts in finished]
        begin = [part for part, wait in zip(self.ready, waits, strict=True) if not wait]
        self.ready = [part for part, wait in zip(self.ready, waits, strict=True) if wait]
        return begin

    def _half_to_begin(self) -> list[tuple[np.ndarray, StepInput]]:
        """Return all ready parts. If one of their environments has finished the next rollout, wait until all are ready, then
        return the half that is least advanced. Otherwise a fast environment grouped with slow ones would run ever further
        ahead."""
        if not any((self.at[env_id] >= 2 * self.num_rows).any() for env_id, _ in self.ready):
            begin, self.ready = self.ready, []
            return begin
        if sum(len(env_id) for env_id, _ in self.ready) < self.num_envs:
            return []
        env_id, inputs = tree.map_structure(lambda *parts: np.concatenate(parts), *self.ready)
        order = np.argsort(self.at[env_id], kind="stable")
        halves = [(env_id[half], tree.map_structure(lambda x, half=half: x[half], inputs)) for half in np.split(order, 2)]
        self.ready = halves[1:]
        return halves[:1]

    def _begin(self, act: Any, keys: Key, version: int, env_id: np.ndarray, inputs: StepInput) -> None:
        ahead, row = (x.astype(np.int32) for x in np.divmod(self.at[env_id], self.num_rows))
        with self.watch("inference"):
            self.carry, before, action, extras = act(self.carry, inputs, env_id, keys, row, ahead)
            self.action[env_id] = action = np.asarray(action)
        check_seen(self.env, inputs.obs, action, env_id)
        with self.watch("environments"):
            self.envs.send(action, None if len(env_id) == self.num_envs else env_id)
        self._write(ACTED, self.at[env_id], env_id, (action, extras))
        if (first := row == 0).any():
            start = jax.tree.map(lambda x: np.asarray(x)[first], (np.full(len(row), version, np.int32), before))
            self._write(START, self.at[env_id][first], env_id[first], start)

    def take(self) -> tuple[Rollout, StepOutcome]:
        """Return the completed rollout."""
        buffer = self.buffers.pop(0)
        self.at -= self.num_rows
        version, carry = buffer.read(START, (0,))
        outcome, env_id = buffer.read(CAME), self.env_id
        return to_rollout(buffer.read(INPUTS), buffer.read(ACTED), outcome, carry, env_id, version), outcome  # type: ignore[arg-type]

    def _receive(self, env_id: np.ndarray, reached: HostStep) -> None:
        reached = self.receiver.row(reached, len(env_id))
        episode = EpisodeStatistics(*(x[env_id] for x in self.episode))
        limit = self.env.max_episode_steps
        done = (self.done | begun_anew(self.envs))[env_id]
        inputs, outcome = finish_step(done, episode, self.action[env_id], reached, limit)
        if np.logical_and(outcome.truncated, np.logical_not(reached.truncated)).any():
            raise EnvironmentFailed(
                f"{self.env.name}: an episode continued past max_episode_steps={limit}, and sampler='async' cannot end it: use "
                "sampler='sync', or set truncated at the limit in step"
            )
        self._write(CAME, self.at[env_id], env_id, outcome)
        self.done[env_id] = outcome.done
        for mine, new in zip(self.episode, outcome.episode, strict=True):
            mine[env_id] = new
        self.at[env_id] += 1
        self._see(env_id, inputs._replace(obs=copied(inputs.obs)))

    def _see(self, env_id: np.ndarray, inputs: StepInput) -> None:
        """Store the next inputs of the policy, also as those after a rollout's last row."""
        check_mask(self.env, inputs.obs, self.done[env_id], env_id)
        at = self.at[env_id]
        self._write(INPUTS, at, env_id, inputs)
        if (at_end := (at % self.num_rows == 0) & (at > 0)).any():
            self._write(INPUTS, at[at_end] - 1, env_id[at_end], jax.tree.map(lambda x: x[at_end], inputs), after=1)
        self.ready.append((env_id, inputs))

    def _write(self, name: str, at: np.ndarray, env_id: np.ndarray, rows: PyTree, after: int = 0) -> None:
        """Store rows [n, ...] at their places, shifted by ``after`` rows."""
        ahead, row = np.divmod(at, self.num_rows)
        for i in np.unique(ahead):
            while len(self.buffers) <= i:
                self.buffers.append(RolloutBuffer((), self.num_rows, self.num_envs))
            mask = ahead == i
            part = jax.tree.map(lambda x, mask=mask: np.asarray(x)[mask], rows)
            self.buffers[i].write(name, (row[mask] + after, env_id[mask]), part, more_rows=int(name == INPUTS))


def _act(
    algorithm: Algorithm, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, keys: Key, row: Array, ahead: Array
) -> tuple[PyTree, PyTree, Array, PyTree]:
    """Act in some environments, each at its own row; return ``(carry of all, carry of these before, action, extras)``.

    Rows of the current rollout use the same keys as in other samplers. The keys of later rollouts (``ahead`` > 0) are not known
    yet. They are folded from the current ones with -ahead, a number that no environment has.
    """
    plain, folded = keys[row], jax.vmap(jax.random.fold_in)(keys[row], -ahead)
    words = jnp.where(ahead[:, None] == 0, jax.random.key_data(plain), jax.random.key_data(folded))
    act_keys = jax.random.wrap_key_data(words, impl=jax.random.key_impl(keys))
    before = jax.tree.map(lambda x: jnp.asarray(x)[env_id], carry)
    after, action, extras = algorithm.act(policy, before, inputs, env_id, act_keys, explore=True)
    carry = jax.tree.map(lambda x, new: jnp.asarray(x).at[env_id].set(new), carry, after)
    return carry, before, action, extras

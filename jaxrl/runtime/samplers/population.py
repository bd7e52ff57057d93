"""Play of populations on host environments: each member plays whole episodes, and no rows are stored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import policy_shapes
from jaxrl.rollout.autoreset import no_episode
from jaxrl.rollout.play import Evaluation, member_axes, population_metrics
from jaxrl.rollout.running_statistics import EpisodeMoments, no_rows
from jaxrl.runtime.samplers.diagnostics import Stopwatch
from jaxrl.runtime.samplers.sampler import host_env
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.runtime.system.compiling import CompiledCall
from jaxrl.types import Agent, Algorithm, Array, Episodes, Key, Metrics, Policy, PyTree, StepInput
from jaxrl.xla.seed_axis import over_seeds

MOST_ENVIRONMENTS = 64
"""Environments that step together, at most, unless a member alone has more."""


class MemberPlayer:
    """Plays the episodes of some members, in environments that are opened for it.

    The environments of episode e are the same for all members, and depend on (key, e) alone, so results do not depend on which
    members play together or in which process.
    """

    def __init__(self, agent: Agent, on_row: Callable[[], object] = lambda: None) -> None:
        """``on_row`` is called after each row."""
        self.agent, self.on_row, self.watch = agent, on_row, Stopwatch()
        axes, population = member_axes(agent.algorithm, policy_shapes(agent)), agent.algorithm.members
        assert population is not None
        self.members = CompiledCall(jax.jit(jax.vmap(population, (None, 0), axes)))
        self.act = CompiledCall(jax.jit(jax.vmap(_row_of(agent.algorithm), (axes, 0, 0, 0, 0, None, None))))

    def play(self, policy: Policy, key: Key, member: Sequence[int] | np.ndarray) -> Episodes:
        """Play the episodes of members, as ``rollout.play.play_members`` does; NumPy arrays.

        Args:
          policy: of one seed.
        """
        agent, numbers, size = self.agent, np.asarray(member, np.int32), self.agent.episodes
        num_agents = agent.env.num_agents
        lanes = size * max(1, num_agents)
        start = _start(agent, policy, numbers)
        reset_key, key = jax.random.split(key)
        seed = int(jax.random.randint(reset_key, (), 0, 2**31 - 1))
        with self.watch("inference"):
            own = self.members(policy, numbers)
        with self.watch("environments"):
            envs = Stepper(host_env(agent), size, [seed] * len(numbers), evaluation=True)

        def of_members(x: Any) -> Any:
            return np.asarray(x).reshape(len(numbers), lanes, *np.shape(x)[1:])

        with contextlib.closing(envs):
            with self.watch("environments"):
                envs.reset()
            carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(numbers), *x.shape)), agent.algorithm.initial_carry(lanes))
            moments = jax.tree.map(of_members, start.moments)
            result = Evaluation(*start[:3])
            for t in range(agent.rollout_length):
                with self.watch("inference"):
                    playing = ~(result.finished.repeat(max(1, num_agents)) | envs.over)
                    inputs, playing = jax.tree.map(of_members, (envs.input, playing))
                    carry, action, moments = self.act(own, carry, moments, inputs, playing, key, np.int32(t))
                    action = np.asarray(action)
                with self.watch("environments"):
                    result = result.after(envs.step(action.reshape(-1, *action.shape[2:])), num_agents)
                self.on_row()
                if result.finished.all():
                    break
        flat = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), moments)
        return start._replace(**result._asdict(), moments=flat)


def _start(agent: Agent, policy: Policy, member: np.ndarray) -> Episodes:
    """Return the episodes of members before their first rows; NumPy arrays."""
    of_each = np.repeat(np.asarray(member, np.int32), agent.episodes)
    observed, number = getattr(policy.statistics, "observations", ()), len(of_each)
    lanes = number * max(1, agent.env.num_agents)
    nothing: Any = jax.tree.map(np.asarray, no_rows(observed, lanes) if observed else ())
    version: Any = np.full(number, int(policy.version), np.int32)
    result = Evaluation(*no_episode(number), np.zeros(number, bool))  # type: ignore[arg-type]
    return Episodes(*result, of_each, version, nothing)  # type: ignore[arg-type]


def not_played(agent: Agent, policy: Policy) -> Episodes:
    """Return the episodes of a population that may play no more rows; NumPy arrays."""
    return _start(agent, policy, np.arange(agent.num_envs // agent.episodes))


def _row_of(algorithm: Algorithm) -> Callable[..., Any]:
    """Return a function of one member that acts in a row of its episodes, and adds the observations to their moments."""

    def row(
        policy: Policy, carry: PyTree, moments: Any, inputs: StepInput, playing: Array, key: Key, time: Array
    ) -> tuple[PyTree, Array, Any]:
        env_id = jnp.arange(len(playing), dtype=jnp.int32)
        carry, action, _ = algorithm.act(policy, carry, inputs, env_id, jax.random.fold_in(key, time), explore=False)
        if isinstance(moments, EpisodeMoments):
            moments = moments.plus(inputs.obs, playing)
        return carry, action, moments

    return row


def chunks_of(agent: Agent, num_workers: int = 1) -> list[np.ndarray]:
    """Divide the members of a population into chunks that play together, equal in size, several for each worker if possible."""
    number = agent.num_envs // agent.episodes
    most = max(1, min(MOST_ENVIRONMENTS // agent.episodes, -(-number // num_workers)))
    size = max(n for n in range(1, most + 1) if number % n == 0)
    return list(np.arange(number, dtype=np.int32).reshape(-1, size))


def joined(parts: Sequence[Episodes]) -> Any:
    """Join the episodes of chunks in their order."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


class PopulationSampler:
    """Plays the populations of all seeds in this process: a ``Sampler`` whose results are ``Episodes``."""

    def __init__(self, agent: Agent, seeds: Sequence[int]) -> None:
        self.agent, self.num_seeds = agent, len(seeds)
        self.player, self.chunks = MemberPlayer(agent), chunks_of(agent)
        self.watch = self.player.watch
        self.metrics = metrics_of(agent, len(seeds))

    def collect(self, policy: Policy, key: Key, active: np.ndarray) -> tuple[Episodes, Metrics]:
        """Play the next generation of each seed where ``active``, bool[num_seeds]."""
        played = []
        for i in range(self.num_seeds):
            one, own_key = jax.tree.map(lambda x, i=i: x[i], (policy, key))
            if active[i]:
                played.append(joined([self.player.play(one, own_key, chunk) for chunk in self.chunks]))
            else:
                played.append(not_played(self.agent, one))
        episodes: Any = jax.tree.map(lambda *leaves: np.stack(leaves), *played)
        return episodes, self.metrics(episodes)

    def close(self) -> None:
        pass


def metrics_of(agent: Agent, num_seeds: int) -> Callable[[Episodes], Metrics]:
    """Return ``population_metrics`` of a generation's episodes, jitted, [num_seeds, ...]."""
    return jax.jit(
        over_seeds(num_seeds)(lambda episodes: population_metrics(episodes, agent.steps_per_iteration, agent.env.num_agents))
    )

"""The host loop: a sampler collects from environments that run outside JAX, and the learner is that of the fused program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import check_key
from jaxrl.metrics import identity, merge, only_if
from jaxrl.replay.size import replay_bytes
from jaxrl.runtime.checkpoint.states import seal
from jaxrl.runtime.drivers.sampler import HostSampler, Sampler, SamplerFn, host_env, stack
from jaxrl.runtime.drivers.stepping import Stepper
from jaxrl.runtime.system.memory import check_replay_fits
from jaxrl.training import (
    EVALUATION_LIMIT,
    Evaluation,
    check_episodes,
    evaluation_key,
    is_finite,
    join_rows,
    losses,
    policy_of,
    put_back,
    split_rows,
)
from jaxrl.types import Agent, AgentState, Algorithm, Array, Key, Metrics, Policy, Rollout


class InPlace:
    """A function (learner, rollout) of a rule, jitted. It writes into the learner's replay and uses it up, where it would have to
    copy all of it; the rest of the learner stays as it is for whoever acts with it, or goes back to it."""

    def __init__(self, algorithm: Algorithm, function: Callable[[Any, Rollout], Any]) -> None:
        self.split = partial(split_rows, algorithm)
        self.jitted = jax.jit(lambda rows, rest, rollout: function(join_rows(rows, rest), rollout), donate_argnums=0)

    def __call__(self, learner: Any, rollout: Rollout) -> Any:
        return self.jitted(*self.split(learner), rollout)


class HostLearner:
    """One agent learning from a sampler's rollouts: initial state with its warm-up, then iteration after iteration."""

    def __init__(self, agent: Agent, sampler: Sampler) -> None:
        self.agent, self.sampler = agent, sampler
        algorithm = agent.algorithm
        self.policy = jax.jit(algorithm.policy)
        self.update = InPlace(algorithm, algorithm.update)
        self.observe = InPlace(algorithm, algorithm.observe) if algorithm.observe else None
        self.iteration_key = jax.jit(jax.random.fold_in)

    def init(self, key: Key, hyperparams: Any = None) -> AgentState:
        """A fresh state, warmed up."""
        state = self.agent.init(key, hyperparams)
        for _ in range(self.agent.algorithm.warmup_iterations):
            rollout, _ = self._collect(state)
            assert self.observe is not None
            rows = state.warmup_rows + np.sum(rollout.valid, dtype=np.int32)
            learner = self.observe(state.learner, rollout)
            state = state._replace(learner=learner, iteration=state.iteration + 1, warmup_rows=rows)
        return state

    def step(self, state: AgentState) -> tuple[AgentState, Metrics]:
        """What ``Agent.step`` is on a pure environment: collect one rollout, learn from it. The rows that ``state`` stores are
        used up."""
        rollout, episodes = self._collect(state)
        learner, losses = self.update(state.learner, rollout)
        return state._replace(learner=learner, iteration=state.iteration + 1), episodes | losses

    def _collect(self, state: AgentState) -> tuple[Rollout, Metrics]:
        return self.sampler.collect(self.policy(state.learner), self.iteration_key(state.key, state.iteration))

    def close(self) -> None:
        self.sampler.close()


class HostDriver:
    """Runs an agent on host environments for ``jaxrl.run``: seeds one after the other, each with a sampler of its own."""

    def __init__(self, agent: Agent, seeds: Sequence[int], sampler: SamplerFn = HostSampler) -> None:
        self.agent, self.seeds, self.sampler = agent, list(seeds), sampler
        self.learners: list[HostLearner] = []
        self.is_finite = jax.jit(is_finite)

    def init(self, hyperparams: Any = None) -> list[AgentState]:
        """New states, and environments that stand where they begin."""
        if self.agent.algorithm.buffers:
            check_replay_fits(self.agent, len(self.seeds) * replay_bytes(self.agent), len(self.seeds), jax.devices()[:1])
        self._open(self.seeds)
        pairs = zip(self.learners, self.seeds, strict=True)
        return [learner.init(jax.random.key(seed), hyperparams) for learner, seed in pairs]

    def shapes(self, hyperparams: Any = None) -> list[AgentState]:
        """What ``init`` gives, as shapes."""
        return [jax.eval_shape(partial(self.agent.init, hyperparams=hyperparams), jax.random.key(seed)) for seed in self.seeds]

    def adopt(self, states: list[AgentState], iteration: int) -> list[AgentState]:
        """Open environments with other seeds than at the start: their episodes cannot be restored, and must not be repeated."""
        self._open([int(np.random.SeedSequence([seed, iteration]).generate_state(1)[0] % 2**31) for seed in self.seeds])
        return self.seal(states)

    def seal(self, states: list[AgentState]) -> list[AgentState]:
        """Replay that knows of the seam before its next rows."""
        sealed = jax.jit(partial(seal, self.agent), donate_argnums=0)
        return [sealed(state) for state in states]

    def place(self, states: list[AgentState]) -> list[AgentState]:
        """On the one device; a number, which no checkpoint holds, becomes an array. Seeds that were given the same stored rows
        get their own: each writes into them."""
        taken: set[int] = set()

        def own(x: Array) -> Array:
            if (place := x.unsafe_buffer_pointer()) in taken:
                x = jnp.copy(x)
            taken.add(place)
            return x

        def placed(state: AgentState) -> AgentState:
            rows, rest = split_rows(self.agent.algorithm, state.learner)
            return state._replace(learner=join_rows(jax.tree.map(own, rows), rest))

        return [placed(state) for state in jax.device_put(states)]

    def policies(self, states: list[AgentState]) -> Policy:
        """Of all seeds, [num_seeds, ...]."""
        return stack([self.agent.algorithm.policy(state.learner) for state in states])

    def iterate(
        self, states: list[AgentState], iterations: int, alive: Any = True
    ) -> tuple[list[AgentState], Metrics, np.ndarray]:
        """``iterations`` steps of every seed that is alive: states, metrics [num_seeds], alive; see ``training.freezing``.

        The rows that ``states`` store are used up.
        """
        after, collected, alive = [], [], np.array(np.broadcast_to(alive, len(states)))
        for i, (learner, state) in enumerate(zip(self.learners, states, strict=True)):
            total: Metrics | None = None
            for _ in range(iterations if alive[i] else 0):
                new, metrics = learner.step(state)
                if not (goes_on := bool(self.is_finite(new, metrics))):
                    metrics = only_if(False, metrics) | losses(metrics)
                total = merge(total or identity(metrics), metrics)
                if not goes_on:
                    alive[i], state = False, put_back(self.agent.algorithm, state, new)
                    break
                state = new
            after.append(state)
            collected.append(total)
        nothing = identity(next(metrics for metrics in collected if metrics))
        return after, stack([metrics or nothing for metrics in collected]), alive

    def evaluate(
        self, states: list[AgentState], iteration: int, num_episodes: int, *, explore: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Episodes of every seed, greedy or as in training: returns and lengths, [num_seeds, num_episodes]."""
        keys = [evaluation_key(seed, iteration) for seed in self.seeds]
        pairs = zip(states, keys, strict=True)
        played = stack([evaluate_host(self.agent, *pair, num_episodes, explore=explore) for pair in pairs])
        return played.episodic_return, played.episodic_length

    def _open(self, seeds: Sequence[int]) -> None:
        self.close()  # a replay buffer that was not saved is filled by init, before adopt
        self.learners = [HostLearner(self.agent, self.sampler(self.agent, seed)) for seed in seeds]

    def close(self) -> None:
        for learner in self.learners:
            learner.close()
        self.learners = []


def evaluate_host(
    agent: Agent,
    policy: Policy | AgentState,
    key: Key,
    num_episodes: int = 128,
    *,
    explore: bool = False,
    max_steps: int | None = None,
    on_row: Callable[[int], None] | None = None,
) -> Evaluation:
    """Play one whole episode in each of ``num_episodes`` environments opened for it; see ``training.evaluate``.

    Args:
      on_row: called with the number of finished episodes after each row, for progress.
    """
    num_episodes, max_steps = check_episodes(num_episodes, max_steps)
    env, algorithm = host_env(agent), agent.algorithm
    check_key(key, vmapped="agent.init")
    policy = policy_of(agent, policy)
    act = jax.jit(partial(algorithm.act, explore=explore))
    env_id = jnp.arange(num_episodes, dtype=jnp.int32)
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    with contextlib.closing(Stepper(env, num_episodes, seed, evaluation=True)) as envs:
        envs.reset()
        carry = algorithm.initial_carry(num_episodes)
        result = Evaluation(*envs.episode, envs.done)  # type: ignore[arg-type]
        for t in range(max_steps or env.max_episode_steps or EVALUATION_LIMIT):
            carry, action, _ = act(policy, carry, envs.input, env_id, jax.random.fold_in(key, t))
            result = result.after(envs.step(np.asarray(action)))
            if on_row:
                on_row(int(result.finished.sum()))
            if result.finished.all():
                break
    return result

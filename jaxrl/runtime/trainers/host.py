"""Driver for host environments: a sampler collects rollouts outside of JAX; the learner is that of the fused program."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.metrics import merge
from jaxrl.replay.dataset import Dataset
from jaxrl.replay.dataset_replay import with_attached
from jaxrl.replay.size import replay_bytes
from jaxrl.rollout.agents import num_environment_rows
from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.checkpoint.convert_states import mark_discontinuity
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.live_status import WorkerState
from jaxrl.runtime.samplers.diagnostics import RESTARTS, Stopwatch, policy_lag, timed
from jaxrl.runtime.samplers.sampler import HostSampler, Sampler, SamplerFn, stack
from jaxrl.runtime.system.compiling import CompiledCall
from jaxrl.runtime.system.memory import check_replay_fits
from jaxrl.runtime.trainers.host_evaluation import evaluate_host
from jaxrl.runtime.trainers.non_finite import Suspects, of_replay
from jaxrl.runtime.trainers.seed_groups import by_group
from jaxrl.runtime.trainers.trainer import FAILURES
from jaxrl.training import evaluation_key, freezing
from jaxrl.types import Agent, AgentState, Algorithm, Array, Key, Max, Metrics, Policy, Rollout
from jaxrl.xla.in_place import join_rows, split_rows
from jaxrl.xla.seed_axis import over_seeds, per_seed

Collected = tuple[Rollout, Metrics]
"""Result of a sampler: rollout and episode metrics."""


class InPlace:
    """Jitted function (learner, given, *shared) of all seeds that donates the rows of the learner's replay, instead of copying
    them. The rest of the learner is not donated, since callers may still act with it or return to it."""

    def __init__(self, algorithm: Algorithm, function: Callable[..., Any], num_seeds: int | None = None, *shared: Any) -> None:
        self.split, self.shared = partial(split_rows, algorithm, lead=0 if num_seeds is None else 1), shared

        def joined(rows: Any, rest: Any, given: Any, *shared: Any) -> Any:
            return function(join_rows(rows, rest), given, *shared)

        self.jitted = CompiledCall(jax.jit(joined, donate_argnums=0))

    def __call__(self, learner: Any, given: Any) -> Any:
        return self.jitted(*self.split(learner), given, *self.shared)


class HostLearner:
    """Learns from a sampler's rollouts: initial state with its warm-up, then one iteration after another.

    With ``num_seeds``, states, metrics and rollouts have a leading axis for the seeds.
    """

    iterations_per_update = 1
    """Iterations per result of the sampler."""
    on_one_device = True
    """True if the learner's state is on one device."""

    def __init__(self, agent: Agent, sampler: Sampler, num_seeds: int | None = None) -> None:
        self.agent, self.sampler = agent, sampler
        algorithm, over = agent.algorithm, over_seeds(num_seeds)
        self.start: Callable[..., AgentState] = agent.init if num_seeds is None else CompiledCall(jax.jit(over(agent.init)))
        self.policy: Callable[..., Policy] = jax.jit(over(algorithm.policy))
        self.update_one: Callable[[Any, Any], tuple[Any, Metrics]] = algorithm.learn_from or algorithm.update
        data = jax.device_put(agent.data, jax.local_devices()[0]) if isinstance(agent.data, Dataset) else ()
        self.update = InPlace(algorithm, over(self._update, in_axes=(0, 0, None)), num_seeds, data)
        self.observe = InPlace(algorithm, over(algorithm.observe), num_seeds) if algorithm.observe else None
        on_one_cpu = self.on_one_device and jax.local_devices()[0].platform == "cpu"
        self.over_updates = by_group if on_one_cpu and num_seeds is not None else over
        self.learn = InPlace(algorithm, self._learn, num_seeds, data)
        self.iteration_key: Callable[..., Key] = jax.jit(over(jax.random.fold_in))
        self.count = jax.jit(partial(num_environment_rows, num_agents=agent.env.num_agents))

    def init(self, key: Key, hyperparams: Any = None) -> AgentState:
        """Return a new state, warmed up."""
        state = self.start(key, hyperparams)
        for _ in range(self.agent.algorithm.warmup_iterations):
            learner, rows = state.learner, state.warmup_rows
            for rollout in self.warmup_rollouts(state):
                assert self.observe is not None
                rows = rows + self.count(rollout.valid)
                learner = self.observe(learner, rollout)
            state = state._replace(learner=learner, iteration=state.iteration + 1, warmup_rows=rows)
        return state

    def warmup_rollouts(self, state: AgentState) -> Iterator[Rollout]:
        """Yield the rollouts of one warm-up iteration, possibly in parts."""
        rollout, *_ = self.collecting(state)()
        yield rollout

    def step(self, state: AgentState) -> tuple[AgentState, Metrics]:
        """Collect one rollout and learn from it, as ``Agent.step`` does on a pure environment. Donates the stored rows of
        ``state``."""
        rollout, episodes = self.collecting(state)()
        learner, losses = self.update(state.learner, rollout)
        return state._replace(learner=learner, iteration=state.iteration + 1), episodes | losses

    def learn_alive(self, state: AgentState, collected: Collected, alive: Array) -> tuple[AgentState, Array, Metrics]:
        """Learn from a rollout where ``alive``; return states, updated ``alive`` and metrics; see ``training.freezing``."""
        return self.learn(state.learner, (state._replace(learner=()), *collected, alive))

    def collecting(self, state: AgentState, ahead: int = 0) -> Callable[[], Collected]:
        """Return a function that collects the rollout of the iteration ``ahead`` of this one, with the parameters of ``state``.
        It keeps no reference to the state, whose rows an update may donate in the meantime."""
        policy, key = self.policy(state.learner), self.iteration_key(state.key, state.iteration + ahead)
        begin = getattr(self.sampler, "begin", None)
        return begin(policy, key) if begin else partial(self.sampler.collect, policy, key)

    def _update(self, learner: Any, rollout: Rollout, data: Any) -> tuple[Any, Metrics]:
        return with_attached(self.update_one, data)(learner, rollout)

    def _learn(self, learner: Any, given: tuple[Any, ...], data: Any) -> tuple[AgentState, Array, Metrics]:
        others, *collected, alive = given

        def of_one(state: AgentState, collected: list[Any], alive: Array, data: Any) -> tuple[AgentState, Array, Metrics]:
            def step(state: AgentState) -> tuple[AgentState, Metrics]:
                learner, metrics = with_attached(self.learn_from, data)(state.learner, *collected)
                iteration = state.iteration + self.iterations_per_update
                return state._replace(learner=learner, iteration=iteration), metrics

            stepping: Any = freezing(self.agent._replace(step=step))
            (state, alive), metrics = stepping.step((state, alive))
            return state, alive, metrics

        return self.over_updates(of_one, in_axes=(0, 0, 0, None))(others._replace(learner=learner), collected, alive, data)

    def learn_from(self, learner: Any, rollout: Rollout, episodes: Metrics) -> tuple[Any, Metrics]:
        """Learn from the sampler's result, for one seed."""
        lag = policy_lag(learner.version, rollout.version)
        learner, losses = self.update_one(learner, rollout)
        return learner, episodes | losses | lag

    def close(self) -> None:
        self.sampler.close()


class PopulationLearner(HostLearner):
    """Learns from the episodes of populations, whose sampler is also told which seeds may still play."""

    def __init__(self, agent: Agent, sampler: Any, num_seeds: int) -> None:
        super().__init__(agent, sampler, num_seeds)
        remaining = agent.algorithm.remaining_rows or (lambda learner: jnp.ones((), jnp.int32))
        self.remaining_rows = jax.jit(over_seeds(num_seeds)(remaining))

    def collecting(self, state: AgentState, ahead: int = 0) -> Callable[[], Any]:
        policy, key = self.policy(state.learner), self.iteration_key(state.key, state.iteration + ahead)
        sampler: Any = self.sampler
        return partial(sampler.collect, policy, key, np.asarray(self.remaining_rows(state.learner)) > 0)


class HostDriver:
    """``Driver`` on host environments: all seeds act in one call and learn in one call."""

    learner_of: Callable[..., HostLearner] = HostLearner

    def __init__(
        self,
        agent: Agent,
        seeds: Sequence[int],
        sampler: SamplerFn = HostSampler,
        *,
        lag: int = 0,
        learner_of: Callable[..., HostLearner] | None = None,
    ) -> None:
        """Initialize the driver without opening environments.

        Args:
          lag: number of rollouts that are collected while others are learnt from: rollout n uses the parameters of max(0, n -
            lag). A sampler without ``begin`` collects them in a thread.
          learner_of: makes the learner; default: that of the class.
        """
        self.learner_of = learner_of or self.learner_of
        self.agent, self.seeds, self.sampler, self.lag = agent, list(seeds), sampler, lag
        self.learner: HostLearner | None = None
        self.merge = jax.jit(merge)
        self.thread: ThreadPoolExecutor | None = None
        self.pending: deque[Callable[[], Collected]] = deque()
        """Functions that wait for the rollouts of the next iterations."""
        self.failure: Exception | None = None
        """Error that stopped the last ``iterate`` early; None if there was none."""
        self.after_iteration: Callable[[int], bool] = lambda done: True
        """Called with the iterations that ``iterate`` has completed; if it returns False, ``iterate`` stops."""
        self.done = 0
        """Iterations that the last ``iterate`` completed."""
        self.found = Suspects(*np.zeros((2, len(self.seeds), agent.num_lanes), bool))
        """Suspects found in the rollouts that broke seeds."""

    def init(self, hyperparams: Any = None) -> AgentState:
        """Return new states, [num_seeds, ...], and open environments at the start of their first episodes."""
        num_seeds = len(self.seeds)
        if self.agent.algorithm.buffers:
            share = num_seeds * replay_bytes(self.agent) // current().num_processes
            check_replay_fits(self.agent, share, num_seeds, jax.local_devices()[:1])
        return self._open(self.seeds).init(self._keys(), per_seed(hyperparams, num_seeds))

    def shapes(self, hyperparams: Any = None) -> AgentState:
        return jax.eval_shape(jax.vmap(self.agent.init), self._keys(), per_seed(hyperparams, len(self.seeds)))

    def adopt(self, states: AgentState, iteration: int) -> AgentState:
        """Open environments with other seeds than at the start: their episodes cannot be restored and must not be repeated."""
        self._open([int(np.random.SeedSequence([seed, iteration]).generate_state(1)[0] % 2**31) for seed in self.seeds])
        return self.mark_discontinuity(states)

    def mark_discontinuity(self, states: AgentState, which: np.ndarray | None = None) -> AgentState:
        args = (states,) if which is None else (states, which)
        return jax.jit(over_seeds(len(self.seeds))(partial(mark_discontinuity, self.agent)), donate_argnums=0)(*args)

    def place(self, states: AgentState) -> AgentState:
        """Move states to the single device; Python numbers, which no checkpoint can hold, become arrays."""
        return jax.device_put(states)

    def policies(self, states: AgentState) -> Policy:
        assert self.learner is not None
        return jax.tree.map(np.array, self.learner.policy(states.learner))

    def iterate(self, states: AgentState, iterations: int, alive: Any = True) -> tuple[AgentState, Metrics, np.ndarray]:
        """See ``Driver``. It stops early if ``after_iteration`` returns False, or with ``failure`` as the reason if workers fail
        permanently or an environment fails."""
        learner, total = self.learner, None
        assert learner is not None
        still_alive: Any = np.array(np.broadcast_to(alive, len(self.seeds)))
        watch = getattr(learner.sampler, "watch", None) or Stopwatch()
        begin, before, self.done = time.perf_counter(), dict(watch.seconds), 0
        while self.done < iterations and still_alive.any():
            try:
                states, still_alive, metrics = self._once(learner, states, still_alive, watch)
            except FAILURES as error:
                self.failure = error
                break
            total = metrics if total is None else self.merge(total, metrics)
            self.done += 1
            if not self.after_iteration(self.done):
                break
        if total is None:
            return states, {}, still_alive
        spent = {part: seconds - before[part] for part, seconds in watch.seconds.items()}
        total = current().fetch(total)
        if (restarts := getattr(learner.sampler, "restarts", None)) is not None:  # of all workers so far, the same for all seeds
            total[RESTARTS] = Max(np.full(len(self.seeds), np.float32(sum(restarts))))  # type: ignore[arg-type]
        return states, total | timed(self.agent, total, spent, time.perf_counter() - begin, self.done), still_alive

    def _once(self, learner: HostLearner, states: AgentState, going: Any, watch: Stopwatch) -> tuple[Any, Any, Metrics]:
        self._ask_ahead(learner, states)
        collect = self.pending.popleft()
        with watch("waiting") if self.in_background else contextlib.nullcontext():
            collected = collect()
        with watch("learning"):
            states, alive, metrics = learner.learn_alive(states, collected, going)
            alive = current().fetch(alive)
        if isinstance(collected[0], Rollout):  # episodes of populations hold no rows
            self.found.record(collected[0], np.asarray(going) & ~np.asarray(alive))
        return states, alive, metrics

    def suspects(self, states: AgentState, which: np.ndarray) -> Suspects:
        """Return the suspects in the rollouts that broke seeds, and in the rows that they store; see ``Driver``."""
        stored = jax.jit(over_seeds(len(self.seeds))(partial(of_replay, self.agent.algorithm)))(states.learner)
        found = self.found_in_rollouts()
        return found if stored is None else found.union(current().fetch(stored))

    def found_in_rollouts(self) -> Suspects:
        return self.found

    def _ask_ahead(self, learner: HostLearner, states: AgentState) -> None:
        """Start the rollout of this iteration, and those to be collected while it is learnt from. Which parameters they use
        depends only on the number of the iteration."""
        while len(self.pending) <= self.lag:
            collecting = learner.collecting(states, ahead=len(self.pending))
            self.pending.append(self.thread.submit(collecting).result if self.thread else collecting)

    def workers(self) -> list[WorkerState]:
        """Return the states of the worker processes, if there are any."""
        states: Any = getattr(self.learner and self.learner.sampler, "workers", list)
        return states()

    @property
    def in_background(self) -> bool:
        """True if other threads or processes collect the rollouts."""
        return self.thread is not None or hasattr(self.learner and self.learner.sampler, "begin")

    def evaluate(
        self, states: AgentState, iteration: int, num_episodes: int, *, explore: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        policies = self.policies(states)
        played = stack([self.play(policies, i, iteration, num_episodes, explore=explore) for i in range(len(self.seeds))])
        return played.episodic_return, played.episodic_length

    def play(self, policies: Policy, i: int, iteration: int, num_episodes: int, *, explore: bool) -> Evaluation:
        """Play episodes of the i-th seed."""
        policy, key = jax.tree.map(lambda x: x[i], policies), evaluation_key(self.seeds[i], iteration)
        return evaluate_host(self.agent, policy, key, num_episodes, explore=explore)

    def _keys(self) -> Key:
        return jax.vmap(jax.random.key)(np.asarray(self.seeds, np.uint32))

    def _open(self, seeds: Sequence[int]) -> HostLearner:
        self.close()  # if the replay was not saved, init opens environments to fill it, before adopt
        sampler = self.sampler(self.agent, seeds)
        self.learner = self.learner_of(self.agent, sampler, len(seeds))
        if self.lag and self.thread is None and not hasattr(sampler, "begin"):
            self.thread = ThreadPoolExecutor(1, thread_name_prefix="jaxrl-sampler")
        return self.learner

    def close(self) -> None:
        while self.pending:
            collect = self.pending.popleft()
            if self.thread is not None:  # the environments must not be stepping when they are released
                with contextlib.suppress(Exception):
                    collect()
        if self.learner is not None:
            self.learner.close()
        self.learner = None

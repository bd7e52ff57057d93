"""``ActorPool``: a sampler whose worker processes collect rollouts into shared memory and are replaced when they fail."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from jaxrl.builder.spec import modules_outside, unimportable_parts
from jaxrl.metrics import merge
from jaxrl.rollout.collect import episode_metrics
from jaxrl.runtime.actors.dispatcher import Dispatcher
from jaxrl.runtime.actors.messages import WorkerJob, plain_leaves, rollout_of
from jaxrl.runtime.actors.rollout_memory import Ticket
from jaxrl.runtime.actors.stragglers import cut_rows, enough
from jaxrl.runtime.actors.transports.interface import TransportFn
from jaxrl.runtime.actors.transports.shared_memory import SharedMemoryTransport
from jaxrl.runtime.actors.worker_handle import WorkerHandle, shares
from jaxrl.runtime.logs.live_status import WorkerState
from jaxrl.runtime.samplers.diagnostics import Stopwatch
from jaxrl.runtime.samplers.sampler import host_env
from jaxrl.runtime.system.cores import cpu_worker
from jaxrl.runtime.system.devices import threads_per_worker
from jaxrl.settings.aliases import unknown
from jaxrl.settings.validation import Range, check_count, check_number
from jaxrl.types import Agent, Key, Metrics, Policy, PyTree, Rollout
from jaxrl.xla.seed_axis import over_seeds

CLOCKS = ("deterministic", "async")


class ActorPool:
    """A ``Sampler`` whose worker processes act and step the environments.

    Each worker builds the agent from its spec and holds a range of the environments of every seed. Workers write rollouts into
    shared memory that this process reads, and read parameters from shared memory that it writes: no array goes through a pipe.

    The clock selects the parameters with which a worker begins a rollout. "deterministic": those passed when the rollout was
    requested, so that two runs are bit-equal; "async": the newest. ``Rollout.version`` is their version.

    With a ``sync_fraction`` below 1, late workers are cut short, and their part of the rollout ends in padding
    (``actors.stragglers``). How far each worker gets then depends on time, and two runs differ.

    A worker that crashes, is killed, hangs or is stopped is reported and replaced. The new worker collects the unfinished rollout
    again, with the same parameters, in environments seeded by (seed, worker, number of the restart). Its first row is not valid:
    it holds the inputs after the previous rollout, as after a truncation, so neither replay nor a recurrent model sees a
    transition that did not happen.
    """

    def __init__(
        self,
        agent: Agent,
        seeds: Sequence[int],
        *,
        num_workers: int,
        clock: str = "deterministic",
        max_restarts: int = 10,
        timeout: float = 60.0,
        pin: bool = False,
        gradients: bool = False,
        sync_fraction: float = 1.0,
        log_folder: Path | None = None,
        note: Callable[[str], None] = print,
        offset: int = 0,
        engine: str = "local",
        placement: str = "pack",
        insecure: bool = False,
    ) -> None:
        """
        Args:
          agent: an agent on a host environment, with parts that another process can import.
          seeds: seeds of the run.
          num_workers, clock, max_restarts, timeout, pin, sync_fraction, engine, placement, insecure: as in ``Scheme``.
          gradients: workers also compute the gradients of their rollouts, for algorithms with ``Algorithm.gradients``. On the
            asynchronous clock, ``next_part`` then returns each worker's part as it arrives.
          log_folder: folder for the workers' output, in ``worker-0.log`` and so on; None: they share this process's output.
          note: called with one line per event of a worker.
          offset: number of each seed's environments that are in preceding processes of the group.

        Raises:
          TypeError: the agent's environment is pure.
          ValueError: more workers than environments, parts that cannot be imported, or numbers out of range.
          WorkerFailed: a worker did not start.
          OSError: too many open files, or too little memory.
        """
        env, self.num_seeds = host_env(agent), len(seeds)
        check_number("timeout", timeout, Range(0, open_low=True))
        if clock not in CLOCKS:
            raise unknown("clock", clock, CLOCKS)
        check_number("sync_fraction", sync_fraction, Range(0, 1, open_low=True))
        if sync_fraction < 1 and clock == "async":
            raise ValueError(f"sync_fraction={sync_fraction:g} needs clock='deterministic': with clock='async' no worker waits")
        num_workers = check_count("num_workers", num_workers)
        needed = enough(sync_fraction, num_workers)
        self.gradients, self.cuts = gradients, needed < num_workers
        numbers = [int(seed) for seed in seeds]
        threads = threads_per_worker(num_workers) if engine == "local" else 1
        self.members = _members(agent, numbers, num_workers, pin, log_folder, gradients, offset, self.cuts, threads)
        open_transport: TransportFn = partial(SharedMemoryTransport, variables=cpu_worker())
        if engine == "ray":
            from jaxrl.runtime.actors.transports.ray import RayTransport

            settings: dict[str, Any] = {"placement": placement, "timeout": timeout, "insecure": insecure}
            open_transport = partial(RayTransport, **settings, note=note, log_folder=log_folder)
        of_episodes = partial(episode_metrics, num_agents=agent.env.num_agents)
        self.watch, self.metrics = Stopwatch(), jax.jit(over_seeds(self.num_seeds)(of_episodes))
        self.dispatcher = Dispatcher(
            self.members,
            agent.num_lanes,
            open_transport,
            newest=clock == "async",
            by_parts=clock == "async" and gradients,
            enough=needed,
            max_restarts=check_count("max_restarts", max_restarts, at_least=0),
            timeout=timeout,
            note=lambda text: note(f"{env.name}: {text}"),
        )
        self._release = weakref.finalize(self, self.dispatcher.close)
        try:
            self.dispatcher.start()
        except BaseException:  # also Ctrl-C; the exception refers to this object, so the finalizer would not run
            self.close()
            raise

    def begin(self, policy: Policy, key: Key) -> Callable[[], Any]:
        """Request the next rollout, and return a function that waits for it and returns the result of ``collect``. Any number
        of requests may be pending; they are served in order."""
        version = np.array(policy.version, np.int32)
        ticket = self.dispatcher.ask(plain_leaves(policy), version, np.asarray(jax.random.key_data(key)))
        return lambda: self._taken(ticket)

    def collect(self, policy: Policy, key: Key) -> Any:
        """Return a rollout and the metrics of its episodes. Its arrays are in shared memory that is reused once nothing refers to
        them.

        If workers compute gradients, these are a third item, [num_seeds, num_workers, ...], and the metrics contain their losses.
        """
        return self.begin(policy, key)()

    def publish(self, policy: Policy) -> None:
        """Publish newer parameters between two rollouts, on the asynchronous clock."""
        self.dispatcher.publish(plain_leaves(policy), np.array(policy.version, np.int32))

    def next_part(self) -> tuple[Rollout, Metrics, PyTree]:
        """Wait for the next finished part of the requested rollouts. Return one worker's part, its metrics, and its gradient,
        [num_seeds, ...]."""
        ticket, member, rows = self.dispatcher.next_part()
        self._note_time()
        rollout = rollout_of(rows, ticket.acted[member.job.worker], member.job.lanes.start)
        gradient = jax.tree.map(lambda x: x[:, 0], rows.gradient)
        return rollout, self.metrics(rows.came) | ticket.losses[member.job.worker], gradient

    def close(self) -> None:
        self._release()

    def workers(self) -> list[WorkerState]:
        """Return the state of each worker since the last call."""
        return [member.state() for member in self.members]

    @property
    def restarts(self) -> list[int]:
        """Number of restarts of each worker."""
        return [member.restarts for member in self.members]

    def _taken(self, ticket: Ticket) -> Any:
        rows = self.dispatcher.result(ticket)
        self._note_time()
        parts = zip(ticket.acted, self.members, strict=True)
        version = np.concatenate([np.repeat(acted[:, None], member.job.num_lanes, 1) for acted, member in parts], 1)
        rollout, episodes = rollout_of(rows, version), self.metrics(rows.came)
        if self.cuts:
            episodes |= cut_rows(ticket.rows, [member.job.num_envs for member in self.members], *rows.came.reward.shape[:2])
        if not self.gradients:
            return rollout, episodes
        return rollout, episodes | reduce(merge, ticket.losses), rows.gradient

    def _note_time(self) -> None:
        for part, seconds in self.dispatcher.spent().items():
            self.watch.seconds[part] += seconds


def _members(
    agent: Agent,
    seeds: list[int],
    num_workers: int,
    pin: bool,
    log_folder: Path | None,
    gradients: bool,
    offset: int,
    cut_short: bool,
    num_threads: int,
) -> list[WorkerHandle]:
    """Return the handles of a pool's workers, without starting any."""
    if num_workers > agent.num_envs:
        raise ValueError(
            f"num_workers={num_workers} must be at most num_envs={agent.num_envs}: each worker needs at least one environment"
        )
    env, trust = sent_with_spec(agent)
    if log_folder is not None:
        log_folder.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0)) if pin else []
    members = []
    for worker, (first_id, num_envs) in enumerate(shares(agent.num_envs, num_workers)):
        job = WorkerJob(
            spec=agent.spec,
            env=env,
            trust=trust,
            seeds=seeds,
            worker=worker,
            first_id=first_id,
            offset=offset,
            num_envs=num_envs,
            num_agents=agent.env.num_agents,
            after=None,
            num_threads=num_threads,
            gradients=gradients,
            pinned=tuple(cores[worker % len(cores) :][:1]) if cores else (),
            cut_short=cut_short,
        )
        log = None if log_folder is None else log_folder / f"worker-{worker}.log"
        members.append(WorkerHandle(job, log))
    return members


def sent_with_spec(agent: Agent) -> tuple[Callable[[], Any] | None, tuple[str, ...]]:
    """Return what a worker needs in addition to the spec to build the agent: a function that returns the environment, if the spec
    cannot name it, and the modules to trust.

    Raises:
      ValueError: another process cannot import a part of the agent.
    """
    missing = unimportable_parts(agent.spec)
    # An environment that is registered with gymnasium here may not be in another process.
    sent = bool(missing.pop("env", None)) or host_env(agent).name.startswith("gymnasium:")
    wrapper: Any = CloudpickleWrapper
    if not agent.spec or missing:
        unimportable = ", ".join(f"{name}={part}" for name, part in missing.items()) or "an agent that was not made by a builder"
        raise ValueError(f"worker processes cannot import {unimportable}: define it at the top level of a separate module")
    return wrapper(lambda: agent.env) if sent else None, tuple(modules_outside(agent.spec))

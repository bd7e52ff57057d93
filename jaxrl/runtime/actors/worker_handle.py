"""One place in an actor pool: the process that holds it, and what is known of it here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxrl.envs.subprocess.child import Child
from jaxrl.envs.subprocess.shared_memory import SharedMemory
from jaxrl.runtime.actors.messages import RolloutSegment, WorkerJob
from jaxrl.runtime.samplers.diagnostics import WorkerState

START_TIMEOUT = 120.0
"""Seconds, at least, in which a worker must import what it needs, open its environments and compile what acts."""

STANDSTILL = 1.0
"""Seconds after which a worker that was stopped (SIGSTOP) is replaced."""


class WorkerHandle:
    """A worker of the pool, and those that follow it in its place."""

    def __init__(self, job: WorkerJob, log: Path | None, variables: Mapping[str, str]) -> None:
        self.job, self.log, self.variables = job, log, variables
        self.restarts = 0
        self.next_ticket = 0
        """The number of the first rollout that it has not filled."""
        self.ready = self.warm = self.busy = False
        """Whether its environments are open; whether it has filled a rollout; whether it is at one."""
        self.acted = np.zeros(1, np.int32)
        """The version of the parameters by which it acts, or did last; [num_seeds]."""
        self.done: list[tuple[int, float, float]] = []
        """Of each rollout since somebody asked: environment steps, seconds, and how much older than the newest parameters those
        were by which it acted."""
        self.rows = 0
        """How many it told of."""
        self.since: float | None = None
        self.stopped: float | None = None
        """Since when, by ``Ran``, there have been no more rows, and since when it stands still."""

    def __str__(self) -> str:
        first, last = self.job.first_id, self.job.first_id + self.job.num_envs - 1
        return f"worker {self.job.worker} (environment{f's {first} to {last}' if last > first else f' {first}'})"

    @property
    def where(self) -> str:
        """The place of its output, at the end of a message."""
        return "" if self.log is None else f": its output is in {self.log}"

    def state(self) -> WorkerState:
        """What it did since this was asked last."""
        done, self.done = self.done, []
        steps, seconds, lags = zip(*done, strict=True) if done else ((0,), (1.0,), (0.0,))
        return WorkerState(sum(steps) / max(sum(seconds), 1e-9), float(np.mean(lags)), self.restarts)

    def start(self, *memory: tuple[SharedMemory, RolloutSegment]) -> None:
        """Start a process in this place, seeded anew where it follows another one."""
        job = self.job
        if self.restarts:
            mixed = [np.random.SeedSequence([seed, job.worker, self.restarts]) for seed in job.seeds]
            job = job._replace(seeds=[int(each.generate_state(1)[0] >> 1) for each in mixed])
        self.ready = self.warm = self.busy = False
        self.since = self.stopped = None
        self.attached: set[tuple[str, int]] = set()
        self.child = Child("jaxrl.runtime.actors.worker", variables=self.variables, log=self.log)
        self.child.send(job)
        for each in memory:
            self.give(*each)

    def give(self, memory: SharedMemory, told: RolloutSegment) -> None:
        """Let it have a block of memory, once."""
        if (told.kind, told.number) in self.attached:
            return
        self.attached.add((told.kind, told.number))
        self.child.send(told)
        memory.give(self.child.connection, self.child.process.pid)

    def trouble(self, rows: int, timeout: float, now: float) -> str | None:
        """The fault of a process that has told of so many ``rows``, if it has one; ``now`` is by ``Ran``.

        One that has ended is found by this where something that it started holds its connection open.
        """
        if self.child.has_ended and not self.child.has_said:
            return self.child.how_it_ended()
        if self.since is None or rows != self.rows or not (self.busy or not self.ready):
            self.rows, self.since = rows, now
        if not self.child.is_stopped:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = now
        elif now - self.stopped > STANDSTILL:
            return "was stopped (SIGSTOP)"
        allowed = timeout if self.warm else max(timeout, START_TIMEOUT)
        if now - self.since > allowed:
            return (
                f"did {'not finish a row' if self.ready else 'not start'} in {allowed:g} s: it hangs, or needs a larger timeout"
            )
        return None


def shares(num_envs: int, num_workers: int) -> Sequence[tuple[int, int]]:
    """``(first environment, how many)`` of each worker."""
    parts = np.array_split(np.arange(num_envs), num_workers)
    return [(int(part[0]), len(part)) for part in parts]

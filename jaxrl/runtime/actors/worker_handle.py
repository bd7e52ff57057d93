"""``WorkerHandle``: one place in an actor pool, the process in it, and the state of that process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxrl.envs.subprocess.child import Child
from jaxrl.envs.subprocess.shared_memory import SharedMemory
from jaxrl.runtime.actors.messages import RolloutSegment, WorkerJob
from jaxrl.runtime.samplers.diagnostics import WorkerState
from jaxrl.runtime.system.clock import STANDSTILL

START_TIMEOUT = 120.0
"""Minimum number of seconds that a worker may take to import its modules, open its environments and compile its policy."""


class WorkerHandle:
    """A worker of the pool, and its replacements."""

    def __init__(self, job: WorkerJob, log: Path | None, variables: Mapping[str, str]) -> None:
        self.job, self.log, self.variables = job, log, variables
        self.restarts = 0
        self.next_ticket = 0
        """Number of the first rollout that it has not filled."""
        self.ready = self.warm = self.busy = False
        """``ready``: its environments are open; ``warm``: it has filled a rollout; ``busy``: it is collecting one."""
        self.acted = np.zeros(1, np.int32)
        """Version of the parameters with which it acts or last acted, [num_seeds]."""
        self.done: list[tuple[int, float, float]] = []
        """Per rollout since the last call of ``state``: environment steps, seconds, and lag of the parameters behind the newest
        version."""
        self.rows = 0
        """Number of rows that it reported."""
        self.since: float | None = None
        self.stopped: float | None = None
        """Times, on the clock of ``Ran``, of its last row and of the SIGSTOP that stopped it."""

    def __str__(self) -> str:
        first, last = self.job.first_id, self.job.first_id + self.job.num_envs - 1
        return f"worker {self.job.worker} (environment{f's {first} to {last}' if last > first else f' {first}'})"

    def state(self) -> WorkerState:
        """Return its rate, parameter lag and restarts since the last call."""
        done, self.done = self.done, []
        steps, seconds, lags = zip(*done, strict=True) if done else ((0,), (1.0,), (0.0,))
        return WorkerState(sum(steps) / max(sum(seconds), 1e-9), float(np.mean(lags)), self.restarts)

    def start(self, *memory: tuple[SharedMemory, RolloutSegment]) -> None:
        """Start a process, with new seeds if it replaces another."""
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

    def give(self, memory: SharedMemory, segment: RolloutSegment) -> None:
        """Pass it a block of memory, unless it has it already."""
        if (segment.kind, segment.number) in self.attached:
            return
        self.attached.add((segment.kind, segment.number))
        self.child.send(segment)
        memory.give(self.child.connection, self.child.process.pid)

    def trouble(self, rows: int, timeout: float, elapsed: float) -> str | None:
        """Return the process's fault, if it has one.

        Args:
          rows: number of rows that it has reported.
          elapsed: time on the clock of ``Ran``.
        """
        if self.child.has_ended and not self.child.has_said:  # a process that it started keeps its connection open
            return self.child.how_it_ended()
        if self.since is None or rows != self.rows or not (self.busy or not self.ready):
            self.rows, self.since = rows, elapsed
        if not self.child.is_stopped:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = elapsed
        elif elapsed - self.stopped > STANDSTILL:
            return "was stopped (SIGSTOP)"
        allowed = timeout if self.warm else max(timeout, START_TIMEOUT)
        if elapsed - self.since > allowed:
            what = "finish a row" if self.ready else "start"
            return f"did not {what} in {allowed:g} s: it hangs, or needs a larger timeout"
        return None


def shares(num_envs: int, num_workers: int) -> Sequence[tuple[int, int]]:
    """Return ``(first environment, number of environments)`` of each worker."""
    parts = np.array_split(np.arange(num_envs), num_workers)
    return [(int(part[0]), len(part)) for part in parts]

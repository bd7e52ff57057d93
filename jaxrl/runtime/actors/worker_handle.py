"""``WorkerHandle``: one place in an actor pool, the process in it, and the state of that process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.envs.subprocess.child import append_to_log, line
from jaxrl.runtime.actors.messages import WorkerJob
from jaxrl.runtime.actors.transports.interface import Transport
from jaxrl.runtime.logs.live_status import WorkerState

START_TIMEOUT = 120.0
"""Minimum number of seconds that a worker may take to import its modules, open its environments and compile its policy."""


class WorkerHandle:
    """A worker of the pool, and its replacements."""

    def __init__(self, job: WorkerJob, log: Path | None) -> None:
        self.job, self.log = job, log
        self.process: Any = None
        """``WorkerProcess``, once it is started."""
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
        """Time of its last row, on the clock of ``Ran``."""

    @property
    def envs(self) -> tuple[int, int]:
        """Its first and its last environment."""
        return self.job.first_id, self.job.first_id + self.job.num_envs - 1

    def __str__(self) -> str:
        first, last = self.envs
        return f"worker {self.job.worker} (environment{f's {first} to {last}' if last > first else f' {first}'})"

    def state(self) -> WorkerState:
        """Return its rate, parameter lag and restarts since the last call."""
        done, self.done = self.done, []
        steps, seconds, lags = zip(*done, strict=True) if done else ((0,), (1.0,), (0.0,))
        log = None if self.log is None else str(self.log)
        return WorkerState(sum(steps) / max(sum(seconds), 1e-9), float(np.mean(lags)), self.restarts, self.envs, log)

    def start(self, transport: Transport) -> None:
        """Start a process, with new seeds if it replaces another."""
        job = self.job
        if self.restarts:
            mixed = [np.random.SeedSequence([seed, job.worker, self.restarts]) for seed in job.seeds]
            job = job._replace(seeds=[int(each.generate_state(1)[0] >> 1) for each in mixed])
        self.ready = self.warm = self.busy = False
        self.since = None
        self.process = transport.start(job, self.log, is_replacement=bool(self.restarts))

    def write_log(self, text: str) -> None:
        """Append text to its log, if it has one."""
        append_to_log(self.log, line(text))

    @property
    def where(self) -> str:
        """End of a message that names its log."""
        return "" if self.log is None else f": its output is in {self.log}"

    def trouble(self, rows: int, timeout: float, elapsed: float) -> str | None:
        """Return the process's fault, if it has one.

        Args:
          rows: number of rows that it has reported.
          elapsed: time on the clock of ``Ran``.
        """
        if fault := self.process.fault(elapsed):
            return fault
        if self.since is None or rows != self.rows or not (self.busy or not self.ready):
            self.rows, self.since = rows, elapsed
        allowed = timeout if self.warm else max(timeout, START_TIMEOUT)
        if elapsed - self.since > allowed:
            what = "finish a row" if self.ready else "start"
            return f"did not {what} in {allowed:g} s: it hangs, or needs a larger timeout"
        return None


def shares(num_envs: int, num_workers: int) -> Sequence[tuple[int, int]]:
    """Return ``(first environment, number of environments)`` of each worker."""
    parts = np.array_split(np.arange(num_envs), num_workers)
    return [(int(part[0]), len(part)) for part in parts]

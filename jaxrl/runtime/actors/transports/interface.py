"""Interface of transports: how a pool starts workers, how parameters reach them, and how rollouts come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxrl.runtime.actors.messages import Done, Failed, Lost, Ready, Shapes, WorkerJob
from jaxrl.runtime.actors.rollout_memory import Blocks, Progress, Ticket, Users

Message = Ready | Shapes | Done | Failed | Lost


class Policies(Protocol):
    """Policies for workers, by index."""

    @property
    def users(self) -> Users: ...

    def add(self, leaves: Sequence[np.ndarray]) -> int:
        """Store a policy. Return its index, which has one user."""

    def close(self) -> None: ...


class WorkerProcess(Protocol):
    """A worker's process."""

    @property
    def connection(self) -> Connection | None:
        """Connection that has something to read when there is news; None if the process rings the dispatcher's bell."""

    @property
    def has_news(self) -> bool:
        """Return True if ``receive`` returns at once."""

    def receive(self) -> Sequence[Message]:
        """Return the messages that have arrived."""

    def collect(self, ticket: Ticket, policy: int) -> None:
        """Request its part of a rollout, made with the policy of that index."""

    def accept_shapes(self, ticket: Ticket) -> None:
        """Answer ``Shapes``, now that there is memory for the rollout."""

    def fault(self, elapsed: float) -> str | None:
        """Return what is wrong with the process, if anything. ``elapsed`` is the time on the clock of ``Ran``."""

    def release(self) -> None:
        """End the process, now."""


class Transport(Protocol):
    """Means to reach the workers of a pool."""

    @property
    def policies(self) -> Policies: ...

    @property
    def rollouts(self) -> Blocks:
        """Memory of this process for rollouts."""

    @property
    def progress(self) -> Progress: ...

    def start(self, job: WorkerJob, log: Path | None, is_replacement: bool) -> WorkerProcess:
        """Start a worker's process."""

    def end(self, processes: Sequence[Any], grace: float) -> None:
        """End processes, which have ``grace`` seconds to end by themselves."""


TransportFn = Callable[[int, Callable[[], None]], Transport]
"""``(num_workers, ring) -> Transport``: ``ring`` wakes the dispatcher, from any thread."""

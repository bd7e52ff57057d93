"""``Engine``: the objects of a cluster, whichever processes hold them. Does not import jax."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl.envs.subprocess.child import GRACE
from jaxrl.runtime.remote.calls import CallQueue, Job, Outcomes, Request, Worker, complete
from jaxrl.runtime.remote.errors import WorkerLost
from jaxrl.runtime.remote.resources import Resources
from jaxrl.runtime.remote.values import Packed


class Engine(ABC):
    """Objects, and the thread of this process that handles their answers. Methods that return ``Outcomes`` need the lock."""

    total: Resources
    hint: str
    """Resources of the cluster, and advice for those who ask for more."""

    def __init__(self, name: str, log_folder: Path | None, note: Callable[[str], None]) -> None:
        """
        Args:
          name: name of the thread.
          log_folder: folder for the output of the objects, one file each.
          note: called with one line per event that a user should know.
        """
        self._log_folder, self.note = log_folder, note
        if log_folder is not None:
            log_folder.mkdir(parents=True, exist_ok=True)
        self.lock, self._queues = threading.Lock(), dict[CallQueue, None]()
        self._let_go = deque[tuple[CallQueue, str]]()
        """Objects to end when they are idle. Garbage collection appends to it in any thread, so it takes no lock."""
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def start(self, job: Job) -> CallQueue:
        """Start a process for an object. The body of the job is ``Packed``."""

    @abstractmethod
    def request(self, queue: CallQueue, method: str, packed: Packed, references: Sequence[Any]) -> Request:
        """Prepare a call. It keeps nothing that the caller may change."""

    @abstractmethod
    def put(self, packed: Packed) -> Any:
        """Copy a value to where all objects can read it."""

    @abstractmethod
    def _run(self) -> None:
        """Handle answers until ``_is_closing``; then end all objects."""

    @abstractmethod
    def _free(self, queue: CallQueue) -> None:
        """Free what an object that has ended had."""

    @abstractmethod
    def ring(self) -> None:
        """Wake the engine's thread."""

    def used(self) -> list[Resources]:
        """Return the resources of each object."""
        with self.lock:
            return [queue.job.resources for queue in self._queues]

    def log_of(self, name: str) -> Path | None:
        """Return the file for an object's output."""
        return None if self._log_folder is None else self._log_folder / f"{name.replace(' ', '-').lower()}.log"

    def _enter(self, job: Job, start_worker: Callable[[CallQueue], Worker], most: int) -> CallQueue:
        """Start an object's worker, and make its queue of calls."""
        if self._is_closing:
            raise RuntimeError("this cluster is closed")
        with self.lock:
            queue = CallQueue(job, self.lock, start_worker, most=most, note=self.note)
            self._queues[queue] = None
        return queue

    def end(self, queue: CallQueue, why: str) -> None:
        """End an object, and wait for the end of its process. Calls without an answer fail with ``why``."""
        with self.lock:
            outcomes = self._end(queue, why)
        complete(outcomes)
        self.ring()
        if self._thread is not threading.current_thread():
            queue.gone.wait(2 * GRACE)

    def let_go(self, queue: CallQueue, why: str) -> None:
        """End an object once it is idle; for garbage collection, so it takes no lock."""
        self._let_go.append((queue, why))
        self.ring()

    def close(self) -> None:
        """End all objects."""
        if self._is_closing:
            return
        self._is_closing = True
        self.ring()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _end_idle(self) -> Outcomes:
        """End objects to which nothing refers."""
        outcomes: Outcomes = []
        for _ in range(len(self._let_go)):
            queue, why = self._let_go.popleft()
            if queue.is_idle and queue.ready.done():
                outcomes += self._end(queue, why)
            elif queue.error is None:
                self._let_go.append((queue, why))
        return outcomes

    def _end(self, queue: CallQueue, why: str) -> Outcomes:
        """End an object, in the way that suits the engine."""
        return self._end_now(queue, why)

    def _end_now(self, queue: CallQueue, why: str) -> Outcomes:
        """End an object, and fail all its calls."""
        return [] if queue.error is not None else self.settled(queue, queue.finish(closed(queue, why)))

    def lose(self, worker: Any, how: str, kind: type[Exception] = WorkerLost) -> Outcomes:
        """Handle the loss of a worker; see ``CallQueue.lost``."""
        worker.end()
        return self.settled(worker.queue, worker.queue.lost(how, kind))

    def settled(self, queue: CallQueue, outcomes: Outcomes) -> Outcomes:
        """Free what an object had, if it cannot be called any more."""
        if queue.error is not None and queue in self._queues:
            del self._queues[queue]
            self._free(queue)
        return outcomes


def closed(queue: CallQueue, why: str) -> Callable[[], Exception]:
    """Return a function that makes the error for calls of an object that has ended."""
    return lambda: RuntimeError(f"{queue.job.name} cannot be called: {why}")

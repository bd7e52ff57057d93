"""``RayEngine``: remote objects as actors of Ray, on one or several machines."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from jaxrl.envs.subprocess.child import GRACE
from jaxrl.runtime.remote.calls import CallQueue, Job, Outcomes, Request, complete
from jaxrl.runtime.remote.errors import NotEnough, WorkerLost
from jaxrl.runtime.remote.ray.actor import RayHolder, for_ray
from jaxrl.runtime.remote.ray.connect import connect
from jaxrl.runtime.remote.ray.worker import RayWorker
from jaxrl.runtime.remote.resources import Resources
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.system.clock import LOOK, Ran
from jaxrl.runtime.system.cores import cpu_worker

WINDOW = 1000
"""Number of calls of an object that are sent before their answers.

An object that may be replaced gets one at a time: Ray does not report which of several was being executed when its process ended.
"""


class SharedValue:
    """Value in Ray's object store. It is freed with this object."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference


class RayEngine:
    """Starts actors, and handles their answers in a thread of this process."""

    def __init__(
        self,
        address: str | None,
        *,
        cpus: int | None,
        insecure: bool,
        log_folder: Path | None,
        note: Callable[[str], None],
    ) -> None:
        self.ray, self._is_ours = connect(address, cpus, insecure, note)
        self._log_folder, self.note = log_folder, note
        if log_folder is not None:
            log_folder.mkdir(parents=True, exist_ok=True)
        self.hint = "ask for less, end some of them, or start a larger cluster"
        self.lock, self.inbox = threading.Lock(), SimpleQueue[Any]()
        self._queues = dict[CallQueue, None]()
        self._let_go = deque[tuple[CallQueue, str]]()
        self._noted, self._ran, self._is_closing = set[str](), Ran(), False
        groups: Any = self.ray.method(concurrency_group="control")
        holder = type("RayHolder", (RayHolder,), {"versions": groups(RayHolder.versions), "watch": groups(RayHolder.watch)})
        self._holder = self.ray.remote(concurrency_groups={"control": 2})(holder)
        self._thread = threading.Thread(target=self._run, name="jaxrl-remote-ray", daemon=True)
        self._thread.start()

    @property
    def total(self) -> Resources:
        """Resources of all machines together."""
        found = self.ray.cluster_resources()
        return Resources(found.get("CPU", 0), found.get("GPU", 0), int(found.get("memory", 0)))

    def used(self) -> list[Resources]:
        """Return what the objects have."""
        with self.lock:
            return [queue.job.resources for queue in self._queues]

    def start(self, name: str, packed: Packed, resources: Resources, restarts: int, timeout: float | None) -> CallQueue:
        """Start an actor for an object."""
        variables = {"PYTHONUNBUFFERED": "1"}
        if not resources.gpus:
            variables |= cpu_worker(max(1, int(resources.cpus))) | {"CUDA_VISIBLE_DEVICES": ""}
        log = None if self._log_folder is None else self._log_folder / f"{name.replace(' ', '-').lower()}.log"
        options = self._holder.options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            memory=resources.memory or None,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": variables},
        )

        def start_worker(queue: CallQueue) -> RayWorker:
            return RayWorker(queue, options.remote(None if log is None else str(log.resolve())), self)

        job = Job(name, for_ray(packed.copy()), resources, restarts, timeout)
        where = "" if log is None else f": its output is in {log}"
        with self.lock:
            most = 1 if restarts else WINDOW
            queue = CallQueue(job, self.lock, start_worker, most=most, where=where, note=self.note)
            self._queues[queue] = None
        return queue

    def request(self, queue: CallQueue, method: str, packed: Packed, references: Sequence[SharedValue]) -> Request:
        """Prepare a call. Arguments that are not sent at once are copied."""
        waits = queue.job.restarts or len(queue.sent) >= WINDOW - 1
        return Request(method, for_ray(packed.copy() if waits else packed), references)

    def put(self, packed: Packed) -> SharedValue:
        """Copy a value to the object store."""
        return SharedValue(self.ray.put(for_ray(packed)))

    def end(self, queue: CallQueue, why: str) -> None:
        """End an object, and wait for the end of its actor. Calls without an answer fail with ``why``."""
        with self.lock:
            outcomes = self.finish(queue, why)
        complete(outcomes)
        if self._thread is not threading.current_thread():
            wait([queue.worker.gone], GRACE)

    def let_go(self, queue: CallQueue, why: str) -> None:
        """End an object once it is idle; for garbage collection, so it takes no lock."""
        self._let_go.append((queue, why))

    def close(self) -> None:
        """End all objects, and the cluster if it was started here."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self._is_ours:
            self.ray.shutdown()

    def note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    # -------------------------------------------------------------------------------------------------- the engine's thread

    def _run(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(Empty):
                worker, done, handle = self.inbox.get(timeout=LOOK)
                with self.lock:
                    outcomes = self._take(worker, done, handle) if worker.is_open else []
                complete(outcomes)
                del worker, done, handle, outcomes
            if self._ran.is_due:
                with self.lock:
                    outcomes = self._look(self._ran.look())
                complete(outcomes)
        with self.lock:
            outcomes = [each for queue in [*self._queues] for each in self.finish(queue, "its cluster was closed")]
        complete(outcomes)

    def _take(self, worker: RayWorker, done: Any, handle: Callable[[Any], Outcomes]) -> Outcomes:
        """Handle a result of Ray."""
        error = done.exception()
        if error is None:
            return self._settled(worker.queue, handle(done.result()))
        return worker.lost(error)

    def _look(self, elapsed: float) -> Outcomes:
        """Handle objects that hang, and those to which nothing refers."""
        outcomes: Outcomes = []
        for queue in [*self._queues]:
            if queue.error is None and (how := queue.worker.trouble(elapsed)):
                outcomes += self.lose(queue.worker, how, TimeoutError)
            elif queue.error is None and queue.worker.is_waiting(elapsed):
                outcomes += self._without_place(queue)
        for _ in range(len(self._let_go)):
            queue, why = self._let_go.popleft()
            if queue.is_idle and queue.ready.done():
                outcomes += self.finish(queue, why)
            elif queue.error is None:
                self._let_go.append((queue, why))
        return outcomes

    def _without_place(self, queue: CallQueue) -> Outcomes:
        text = f"{queue.job.name} asks for {queue.job.resources}, which other programs of the cluster use: {self.hint}"
        return self._settled(queue, queue.finish(lambda: NotEnough(text)))

    def lose(self, worker: RayWorker, how: str, kind: type[Exception] = WorkerLost) -> Outcomes:
        """Handle the loss of a worker."""
        worker.end()
        return self._settled(worker.queue, worker.queue.lost(how, kind))

    def finish(self, queue: CallQueue, why: str) -> Outcomes:
        """End an object."""
        if queue.error is not None:
            return []
        outcomes = queue.finish(lambda: RuntimeError(f"{queue.job.name} cannot be called: {why}"))
        return self._settled(queue, outcomes)

    def _settled(self, queue: CallQueue, outcomes: Outcomes) -> Outcomes:
        if queue.error is not None:
            self._queues.pop(queue, None)
            queue.gone.set()
        return outcomes

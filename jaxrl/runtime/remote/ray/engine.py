"""``RayEngine``: remote objects as actors of Ray, on one or several machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from jaxrl.runtime.remote.calls import CallQueue, Job, Outcomes, Request, complete
from jaxrl.runtime.remote.engine import Engine
from jaxrl.runtime.remote.errors import NotEnough
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


class RayEngine(Engine):
    """Starts actors, and handles their answers in a thread of this process."""

    hint = "ask for less, end some of them, or start a larger cluster"

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
        super().__init__("jaxrl-remote-ray", log_folder, note)
        self.inbox, self._noted, self._ran = SimpleQueue[Any](), set[str](), Ran()
        control: Any = self.ray.method(concurrency_group="control")
        holder = type("RayHolder", (RayHolder,), {"versions": control(RayHolder.versions), "watch": control(RayHolder.watch)})
        self._holder = self.ray.remote(concurrency_groups={"control": 2})(holder)
        self._thread.start()

    @property
    def total(self) -> Resources:  # type: ignore[override]
        """Resources of all machines together."""
        found = self.ray.cluster_resources()
        return Resources(found.get("CPU", 0), found.get("GPU", 0), int(found.get("memory", 0)))

    def start(self, name: str, packed: Packed, resources: Resources, restarts: int, timeout: float | None) -> CallQueue:
        """See ``Engine``."""
        variables = {"PYTHONUNBUFFERED": "1"}
        if not resources.gpus:
            variables |= cpu_worker(max(1, int(resources.cpus))) | {"CUDA_VISIBLE_DEVICES": ""}
        log = self.log_of(name)
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
        return self._enter(job, start_worker, log, most=1 if restarts else WINDOW)

    def request(self, queue: CallQueue, method: str, packed: Packed, references: Sequence[SharedValue]) -> Request:
        """See ``Engine``. Arguments that are sent at once need no copy."""
        waits = queue.job.restarts or len(queue.sent) >= WINDOW - 1
        return Request(method, for_ray(packed.copy() if waits else packed), references)

    def put(self, packed: Packed) -> SharedValue:
        """See ``Engine``."""
        return SharedValue(self.ray.put(for_ray(packed)))

    def close(self) -> None:
        """End all objects, and the cluster if it was started here."""
        was_open = not self._is_closing
        super().close()
        if was_open and self._is_ours:
            self.ray.shutdown()

    def ring(self) -> None:
        """See ``Engine``."""
        self.inbox.put(None)

    def note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    # -------------------------------------------------------------------------------------------------- the engine's thread

    def _run(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(Empty):
                if (found := self.inbox.get(timeout=LOOK)) is not None:
                    with self.lock:
                        outcomes = self._take(*found)
                    complete(outcomes)
                del found  # a result that this thread refers to cannot be freed
            if self._ran.is_due:
                with self.lock:
                    outcomes = self._look(self._ran.look())
                complete(outcomes)
        with self.lock:
            outcomes = [each for queue in [*self._queues] for each in self._end(queue, "its cluster was closed")]
        complete(outcomes)

    def _take(self, worker: RayWorker, done: Any, handle: Callable[[Any], Outcomes]) -> Outcomes:
        """Handle a result of Ray."""
        if not worker.is_open:
            return []
        error = done.exception()
        if error is None:
            return self.settled(worker.queue, handle(done.result()))
        return worker.lost(error)

    def _look(self, elapsed: float) -> Outcomes:
        """Handle objects that hang, and those to which nothing refers."""
        outcomes: Outcomes = []
        for queue in [*self._queues]:
            if queue.error is None and (how := queue.worker.trouble(elapsed)):
                outcomes += self.lose(queue.worker, how, TimeoutError)
            elif queue.error is None and queue.worker.is_waiting(elapsed):
                outcomes += self._without_place(queue)
        return outcomes + self._end_idle()

    def _without_place(self, queue: CallQueue) -> Outcomes:
        text = f"{queue.job.name} asks for {queue.job.resources}, which other programs of the cluster use: {self.hint}"
        return self.settled(queue, queue.finish(lambda: NotEnough(text)))

    def refuse(self, queue: CallQueue, why: str) -> Outcomes:
        """End an object that cannot be used."""
        return self._end(queue, why)

    def _free(self, queue: CallQueue) -> None:
        queue.worker.gone.add_done_callback(lambda done: queue.gone.set())

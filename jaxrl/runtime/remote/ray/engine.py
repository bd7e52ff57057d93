"""``RayEngine``: remote objects as actors of Ray, on one or several machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from jaxrl.envs.subprocess.descendants import VARIABLE, new_mark
from jaxrl.runtime.remote.calls import CallQueue, Job, Outcomes, Request, complete
from jaxrl.runtime.remote.engine import Engine
from jaxrl.runtime.remote.errors import NotEnough, WorkerLost
from jaxrl.runtime.remote.ray.actor import RayHolder, as_list, for_ray
from jaxrl.runtime.remote.ray.connect import connect, disconnect
from jaxrl.runtime.remote.ray.worker import RayWorker
from jaxrl.runtime.remote.resources import Resources
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.system.clock import LOOK, Ran
from jaxrl.runtime.system.cores import cpu_worker

WINDOW = 1000
"""Number of calls of an object that are sent before their answers.

An object that may be replaced gets one at a time: Ray does not report which of several was being executed when its process ended.
"""


CONTROL = "control"
"""Concurrency group of the methods that are executed beside the call in progress."""

STRATEGIES = {"pack": "DEFAULT", "spread": "SPREAD"}
"""Placement -> scheduling strategy of Ray."""


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
        patience: float,
        note: Callable[[str], None],
    ) -> None:
        self.patience = patience
        self.ray, self._is_ours = connect(address, cpus, insecure, note)
        super().__init__("jaxrl-remote-ray", log_folder, note)
        self.inbox, self._noted, self._ran = SimpleQueue[Any](), set[str](), Ran()
        control: Any = self.ray.method(concurrency_group=CONTROL)
        beside = {name: control(getattr(RayHolder, name)) for name in ("versions", "watch", "output", "call_beside")}
        self._holder = self.ray.remote(concurrency_groups={CONTROL: len(beside)})(type("RayHolder", (RayHolder,), beside))
        self._node = self.ray.get_runtime_context().get_node_id()
        self._thread.start()

    @property
    def total(self) -> Resources:  # type: ignore[override]
        """Resources of all machines together."""
        found = self.ray.cluster_resources()
        return Resources(found.get("CPU", 0), found.get("GPU", 0), int(found.get("memory", 0)))

    def start(self, job: Job) -> CallQueue:
        """See ``Engine``."""
        cpus, gpus, memory = job.resources
        variables = {"PYTHONUNBUFFERED": "1"}
        if not gpus:
            variables |= cpu_worker(max(1, int(cpus))) | {"CUDA_VISIBLE_DEVICES": ""}
        log = None if job.log is None else (self._node, str(job.log.resolve()))

        def start_worker(queue: CallQueue) -> RayWorker:
            holder = self._holder.options(
                num_cpus=cpus,
                num_gpus=gpus,
                memory=memory or None,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=STRATEGIES[job.placement],
                runtime_env={"env_vars": variables | {VARIABLE: new_mark()}},
            )
            return RayWorker(queue, holder.remote(log), self)

        return self._enter(job._replace(body=for_ray(job.body.copy())), start_worker, most=1 if job.restarts else WINDOW)

    def request(self, queue: CallQueue, method: str, packed: Packed, references: Sequence[SharedValue]) -> Request:
        """See ``Engine``. Arguments that are sent at once need no copy."""
        waits = queue.job.restarts or len(queue.sent) >= WINDOW - 1
        return Request(method, [method, *as_list(packed.copy() if waits else packed)], references)

    def put(self, packed: Packed) -> SharedValue:
        """See ``Engine``."""
        return SharedValue(self.ray.put(for_ray(packed)))

    def close(self) -> None:
        """End all objects, and the cluster if it was started here."""
        was_open = not self._is_closing
        super().close()
        if was_open and self._is_ours:
            disconnect(self.ray)

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
            elif queue.error is None and queue.worker.is_late(elapsed):
                outcomes += self._late(queue, elapsed)
        return outcomes + self._end_idle()

    def _late(self, queue: CallQueue, elapsed: float) -> Outcomes:
        """Handle an object without a place, or whose process does not start: it was stopped before it had a guard, or hangs."""
        if queue.worker.look_for_place(elapsed):
            return []
        if queue.worker.has_place:
            return self.lose(queue.worker, f"did not run within {self.patience:g} s of having a place, and was killed")
        text = f"{queue.job.name} asks for {queue.job.resources}, which other programs of the cluster use: {self.hint}"
        return self.settled(queue, queue.finish(lambda: NotEnough(text)))

    def lose(self, worker: RayWorker, how: str, kind: type[Exception] = WorkerLost) -> Outcomes:
        """See ``Engine``."""
        worker.how = how
        return super().lose(worker, how, kind)

    def refuse(self, queue: CallQueue, why: str) -> Outcomes:
        """End an object that cannot be used."""
        return self._end(queue, why)

    def _free(self, queue: CallQueue) -> None:
        queue.worker.gone.add_done_callback(lambda done: queue.gone.set())

"""``RayEngine``: remote objects as actors of Ray, on one or several machines."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from jaxrl.envs.subprocess.child import GRACE
from jaxrl.runtime.remote.calls import START, CallQueue, Job, Outcomes, Request
from jaxrl.runtime.remote.errors import NotEnough, WorkerLost
from jaxrl.runtime.remote.holder import Exceptional
from jaxrl.runtime.remote.ray.actor import RayHolder, for_ray
from jaxrl.runtime.remote.resources import Resources
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.remote.versions import difference, full_versions, short_versions
from jaxrl.runtime.system.clock import LOOK, Ran
from jaxrl.runtime.system.cores import cpu_worker

WINDOW = 1000
"""Number of calls of an object that are sent before their answers.

An object that may be replaced gets one at a time: Ray does not report which of several was being executed when its process ended.
"""

PATIENCE = 30.0
"""Seconds that an object may wait for CPUs, GPUs or memory that other programs of the cluster use."""

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that, set to 0, makes Ray use the loopback interface for a cluster of one machine. Read when Ray is imported."""

ANSWER = 15.0
"""Seconds that a cluster may take to answer at all."""


class SharedValue:
    """Value in Ray's object store. It is freed with this object."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference


class RayWorker:
    """Actor that holds an object, and the requests that it has."""

    def __init__(self, queue: CallQueue, actor: Any, engine: RayEngine) -> None:
        self.queue, self._actor, self._engine = queue, actor, engine
        self._asked, self._done = deque[int](), dict[int, Any]()
        """Numbers of requests without an answer, in order, and answers that came before those of older requests."""
        self._next = 0
        self.since: float | None = None
        self.begun = False
        """Its process has started."""
        self.is_open, self.has_room = True, True
        self._expect(actor.versions.remote(), self._compare)
        watch = actor.watch.remote(queue.job.resources.memory)
        self._expect(watch, self._too_large)
        self.gone = watch.future()
        """Completed when the actor has ended."""

    def send(self, request: Request) -> None:
        """See ``calls.Worker``."""
        if request.method == START:
            reference = self._actor.start.remote(request.body)
        else:
            shared = [value.reference for value in request.references]
            reference = self._actor.call.remote(request.method, request.body, *shared)
        number = self._next
        self._next += 1
        self._asked.append(number)
        self._expect(reference, lambda outcome: self._answered(number, outcome))

    def end(self) -> None:
        """See ``calls.Worker``."""
        if self.is_open:
            self.is_open = False
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._engine.ray.kill(self._actor)

    def _expect(self, reference: Any, handle: Callable[[Any], Outcomes]) -> None:
        """Call ``handle`` with a result, in the engine's thread."""
        reference.future().add_done_callback(lambda done: self._engine.inbox.put((self, done, handle)))

    def lost(self, error: BaseException) -> Outcomes:
        """Handle an error of Ray: the actor, or its machine, is gone."""
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return self._engine.lose(self, f"was lost ({text.rstrip('.')})")

    def _answered(self, number: int, outcome: Packed | Exceptional) -> Outcomes:
        self._done[number] = outcome
        outcomes: Outcomes = []
        while self._asked and self._asked[0] in self._done and self.is_open:
            self.since = None
            outcomes += self.queue.answered(self._done.pop(self._asked.popleft()))
        return outcomes

    def _compare(self, versions: dict[str, str]) -> Outcomes:
        self.begun, self.since = True, None
        if unequal := difference(short_versions(), versions):
            return self._engine.finish(self.queue, f"the cluster has other versions: {unequal}")
        if unequal := difference(full_versions(), versions):
            self._engine.note_once(f"the cluster has other versions: {unequal}")
        return []

    def _too_large(self, how: str) -> Outcomes:
        return self._engine.lose(self, how)

    def trouble(self, elapsed: float) -> str | None:
        """Return its fault if it takes too long. ``elapsed`` is the time on the clock of ``Ran``."""
        if not self.queue.sent or self.since is None:
            self.since = elapsed
        timeout = self.queue.job.timeout if self.begun else None
        if timeout is None or elapsed - self.since <= timeout:
            return None
        return f"did not finish in {timeout:g} s, and was killed: it hangs, or needs a larger timeout"

    def is_waiting(self, elapsed: float) -> bool:
        """Return whether it has waited too long for a place."""
        return not self.begun and self.since is not None and elapsed - self.since > PATIENCE


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
        self.ray, self._is_ours = _connect(address, cpus, insecure, note)
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
        _complete(outcomes)
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
                _complete(outcomes)
                del worker, done, handle, outcomes
            if self._ran.is_due:
                with self.lock:
                    outcomes = self._look(self._ran.look())
                _complete(outcomes)
        with self.lock:
            outcomes = [each for queue in [*self._queues] for each in self.finish(queue, "its cluster was closed")]
        _complete(outcomes)

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
                text = f"{queue.job.name} asks for {queue.job.resources}, which other programs of the cluster use: {self.hint}"
                outcomes += self._settled(queue, queue.finish(lambda text=text: NotEnough(text)))
        for _ in range(len(self._let_go)):
            queue, why = self._let_go.popleft()
            if queue.is_idle and queue.ready.done():
                outcomes += self.finish(queue, why)
            elif queue.error is None:
                self._let_go.append((queue, why))
        return outcomes

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


def _complete(outcomes: Outcomes) -> None:
    for outcome in outcomes:
        outcome()


def _connect(address: str | None, cpus: int | None, insecure: bool, note: Callable[[str], None]) -> tuple[Any, bool]:
    """Join a cluster, or start one on this machine. Return the module ``ray``, and whether the cluster ends with this one."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError('engine "ray" needs the package ray: pip install "jaxrl[ray]"')
    address = address or os.environ.get("RAY_ADDRESS") or None
    # Ray reads these when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if address is None:
        os.environ.setdefault(LOOPBACK, "0")
    elif not ("ray" in sys.modules and sys.modules["ray"].is_initialized()):
        check_token(address, insecure, note)
    import ray

    if ray.is_initialized():
        return ray, False
    handler = signal.getsignal(signal.SIGTERM)
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(num_cpus=cpus, include_dashboard=False, **settings)
        else:
            ray.init(address, **settings)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    return ray, True


def check_token(address: str, insecure: bool, note: Callable[[str], None]) -> None:
    """Check that a cluster answers, and only to those who have its token.

    Raises:
      ConnectionError: it does not answer.
      PermissionError: it answers without a token, and ``insecure`` is False.
    """
    without = _asks(address, {"RAY_AUTH_MODE": "disabled"})
    if without is None:
        if not insecure:
            raise PermissionError(
                f"the cluster at {address} runs what anyone sends to it: start it with RAY_AUTH_MODE=token, or accept that with "
                "insecure=True"
            )
        note(f"the cluster at {address} asks for no token: anyone who reaches it can run programs there")
        os.environ["RAY_AUTH_MODE"] = "disabled"
    elif "InvalidAuthToken" not in without:
        raise ConnectionError(f"no cluster answers at {address}: {without[-200:]}")
    elif (with_ours := _asks(address, {"RAY_AUTH_MODE": "token"})) is not None:
        raise PermissionError(
            f"the cluster at {address} refuses this process's token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH "
            f"({' '.join(with_ours.split())[:120]})"
        )


def _asks(address: str, variables: dict[str, str]) -> str | None:
    """Ask for a cluster's status in a new process. Return None if it answers, else the error."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=ANSWER)
    except subprocess.TimeoutExpired:
        return f"it did not answer in {ANSWER:g} s"
    return None if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip())

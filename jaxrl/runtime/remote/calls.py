"""``CallQueue``: the calls of one remote object, in order, whichever engine executes them. Does not import jax."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jaxrl.envs.subprocess.child import RemoteTraceback
from jaxrl.runtime.remote.errors import RemoteError, WorkerLost
from jaxrl.runtime.remote.holder import Exceptional
from jaxrl.runtime.remote.resources import Resources
from jaxrl.runtime.remote.values import Packed, unpack

START = ""
"""Stands for the name of the method in the request that makes the object."""

START_TIMEOUT = 120.0
"""Least number of seconds that making an object with a timeout may take: its process starts, and imports what it needs."""

LOST_STARTS = 3
"""Number of starts in a row that are lost after which an object ends, even if it may be restarted more often."""

Outcomes = list[Callable[[], object]]
"""Functions that complete futures. They are called without the lock, as a user's callbacks may do anything."""


class Request:
    """A call, or the request to make the object."""

    def __init__(
        self, method: str, body: Any, references: Sequence[Any] = (), discard: Callable[[], object] = lambda: None
    ) -> None:
        """
        Args:
          body: the arguments, as the engine sends them.
          references: shared values among the arguments, which must exist until the answer.
          discard: called if the request is never sent.
        """
        self.method, self.body, self.references, self.discard = method, body, references, discard
        self.future: Future[Any] = Future()


class Job(NamedTuple):
    """Remote object that a user asked for."""

    name: str
    """Text for errors, such as "Simulator 0"."""
    body: Any
    """``(function, arguments, keywords)`` that make it, as the engine sends them."""
    resources: Resources
    restarts: int
    timeout: float | None
    """Seconds that a call may take; see ``CallQueue.time_limit``."""
    log: Path | None
    """File for its output."""
    placement: str
    """See ``Cluster.start``."""


class Worker(Protocol):
    """Process that holds a remote object."""

    @property
    def has_room(self) -> bool:
        """Return True if a request can be sent at once."""

    def send(self, request: Request) -> None:
        """Send a request."""

    def end(self) -> None:
        """End the process, now."""


class CallQueue:
    """Calls of one object: those that wait, and those sent to its worker, which answers in the order of sending.

    A worker begins a request after it has answered those before, so if it is lost, only the oldest request without an answer can
    have been executed in part. That one fails. If the worker is replaced, the others are sent to the new one.

    All methods but ``call`` are called with the lock.
    """

    def __init__(
        self,
        job: Job,
        lock: threading.Lock,
        start_worker: Callable[[CallQueue], Worker],
        *,
        most: int,
        note: Callable[[str], None],
    ) -> None:
        """
        Args:
          start_worker: starts a process for the object.
          most: number of requests that may be sent before their answers.
          note: called with one line per restart.
        """
        self.job, self.lock, self._start_worker, self._most = job, lock, start_worker, most
        self.where, self._note = "" if job.log is None else f": its output is in {job.log}", note
        """``where``: end of a message that names the log."""
        self.waiting, self.sent = deque[Request](), deque[Request]()
        self.restarts = self._lost_starts = 0
        self.error: Callable[[], Exception] | None = None
        """Makes the error for further calls; None while the object exists."""
        self.ready: Future[None] = Future()
        """Completed when the object is made."""
        self.gone = threading.Event()
        """Set when the object has ended."""
        self.worker: Any = start_worker(self)
        self._ask_to_start()

    def _ask_to_start(self) -> None:
        start = Request(START, self.job.body)
        if not self.ready.done():
            start.future = self.ready
        self.waiting.appendleft(start)
        self.fill()

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.sent

    @property
    def time_limit(self) -> float | None:
        """Seconds that the request in progress may take; None: any time."""
        timeout = self.job.timeout
        is_start = bool(self.sent) and self.sent[0].method == START
        return max(timeout, START_TIMEOUT) if timeout is not None and is_start else timeout

    def call(self, request: Request) -> Future[Any]:
        """Add a request, and send it if there is room."""
        with self.lock:
            if self.error is not None:
                request.discard()
                raise self.error()
            self.waiting.append(request)
            self.fill()
        return request.future

    def fill(self) -> None:
        """Send waiting requests while there is room."""
        while self.waiting and len(self.sent) < self._most and self.worker.has_room:
            request = self.waiting.popleft()
            if request.future.running() or request.future.set_running_or_notify_cancel():
                self.sent.append(request)
                self.worker.send(request)
            else:
                request.discard()

    def answered(self, outcome: Packed | Exceptional) -> Outcomes:
        """Handle the answer to the oldest request that was sent."""
        request = self.sent.popleft()
        if isinstance(outcome, Packed):
            self._lost_starts = 0
            self.fill()
            return [lambda: self._deliver(request, outcome)]
        if request.method == START:
            return self.finish(lambda: self._remote_error(request, outcome), [request])
        self.fill()
        return [lambda: request.future.set_exception(self._remote_error(request, outcome))]

    def _deliver(self, request: Request, outcome: Packed) -> None:
        try:
            value = unpack(outcome)
        except Exception as error:
            text = f"the result of {self.job.name}.{request.method} cannot be loaded here: {type(error).__name__}: {error}"
            request.future.set_exception(RemoteError(text, type(error).__name__, str(error)))
        else:
            request.future.set_result(value)

    def _remote_error(self, request: Request, raised: Exceptional) -> RemoteError:
        what = f"{self.job.name}.{request.method}" if request.method else self.job.name
        error = RemoteError(f"{what} raised {raised.type_name}: {raised.message}{self.where}", raised.type_name, raised.message)
        error.__cause__ = RemoteTraceback(raised.traceback)
        return error

    def lost(self, how: str, kind: type[Exception] = WorkerLost) -> Outcomes:
        """Handle the loss of the worker, and replace it if that is allowed.

        Args:
          how: predicate of the worker, such as "was killed by SIGKILL".
          kind: type of the error of the request in progress.
        """
        request = self.sent.popleft() if self.sent else None
        when = "between two calls" if request is None else f"during {request.method}" if request.method else "at its start"
        reason = f"the worker of {self.job.name} {how} {when}"
        self._lost_starts += request is not None and request.method == START
        trouble = self._replace()
        if trouble is None:
            news = f"{reason}; replaced (restart {self.restarts} of {self.job.restarts})"
            failed = [] if request is None or request.method == START else [request]
            return [lambda: self._note(news), *(_failing(each, lambda: kind(f"{reason}{self.where}")) for each in failed)]
        text = f"{reason}{trouble}{self.where}"
        first: Outcomes = [] if request is None else [_failing(request, lambda: kind(text))]
        return first + self.finish(lambda: WorkerLost(text))

    def _replace(self) -> str | None:
        """Start another worker, which gets the calls that were not begun. Return the end of a message if that is not possible."""
        if self.restarts >= self.job.restarts:
            return f", after {self.restarts} restart{'s' * (self.restarts > 1)}" if self.restarts else ""
        if self._lost_starts >= LOST_STARTS:
            return f", which is the loss of {self._lost_starts} starts in a row"
        self.restarts += 1
        self.waiting.extendleft(reversed(self.sent))
        self.sent.clear()
        try:
            self.worker = self._start_worker(self)
        except OSError as error:
            return f", and cannot be replaced: {error}"
        self._ask_to_start()
        return None

    def finish(self, error: Callable[[], Exception], failed: Sequence[Request] = ()) -> Outcomes:
        """End the object. These requests, and all without an answer, fail with the error, as do further calls."""
        self.error = error
        left = [*failed, *self.sent, *self.waiting]
        self.sent.clear()
        self.waiting.clear()
        self.worker.end()
        return [_failing(each, error) for each in left]


def _failing(request: Request, error: Callable[[], Exception]) -> Callable[[], None]:
    """Return a function that completes a request's future with an error, unless the user has cancelled it."""

    def fail() -> None:
        future = request.future
        if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
            future.set_exception(error())

    return fail


def complete(outcomes: Outcomes) -> None:
    """Complete futures. Call this without the lock. What a user's callback raises is reported as of any thread."""
    for outcome in outcomes:
        try:
            outcome()
        except Exception as error:
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))

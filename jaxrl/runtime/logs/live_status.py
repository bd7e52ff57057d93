"""``status.json``: the process of a run, its workers and its last messages, for readers in other processes.

The other files of a run are its results. This one shows what happens now: a thread writes it again after each change, at most
once a second, and otherwise every ``BEAT`` seconds, as a sign of life. No part of a run reads it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.runtime.logs.records import Record
from jaxrl.runtime.logs.run_folder import STATUS, plain, without_nan
from jaxrl.runtime.system.disk import parse_json, read_end, write_atomically
from jaxrl.runtime.system.process_identity import ProcessIdentity, this_process
from jaxrl.version import __version__

FORMAT = 1
"""Version of the layout of the file. It and the key ``jaxrl`` never change their places."""

PAUSE, BEAT = 1.0, 10.0
"""Seconds between two writes: at least, and at most."""

KEPT, LONGEST = 50, 2000
"""Most messages in the file, and most characters of each."""

MAX_BYTES = 2**22

ENDS = ("finished", "stopped", "diverged", "failed")
"""States in which a run ends: everything is done; a signal stopped it; seeds diverged; an error ended it."""


class WorkerState(NamedTuple):
    """Statistics of a worker process, shown by the run."""

    steps_per_second: float
    """Rows over its environments of all seeds, per second of collecting."""
    lag: float
    """Age of the parameters that it acted with, in updates behind the newest; mean over its rollouts and seeds."""
    restarts: int
    envs: tuple[int, int] | None = None
    """Its first and its last environment of each seed."""
    log: str | None = None
    """File with its output."""


class Message(NamedTuple):
    """An event of a run, as its display reported it."""

    time: float
    """Seconds since 1970, like all times in the file."""
    text: str


class End(NamedTuple):
    """State in which a process ended the run, one of ``ENDS``, and why."""

    state: str
    reason: str
    time: float


class StatusFile(NamedTuple):
    """Contents of ``status.json``."""

    process: ProcessIdentity
    begun: float
    """When this process began or resumed the run."""
    written: float
    eta: float | None
    """Time at which training will end, as estimated last."""
    end: End | None
    workers: list[WorkerState]
    messages: list[Message]


def end_by(error: BaseException | None) -> tuple[str, str]:
    """Return the state in which an exception ends a run, and the reason."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted"
    return "failed", str(error) or type(error).__name__


class LiveStatus:
    """Writer of ``status.json``, and a display of the run like those of ``console.progress``.

    Its notes are kept until ``begin``, before which it writes nothing. A disk that is full, or a folder that is gone, does not
    disturb the run: the file is then out of date, and readers can see since when.
    """

    def __init__(self, folder: Path, is_there: Callable[[], bool] = lambda: True) -> None:
        """``is_there``: returns whether the folder is still the run's; nothing is written to another one."""
        self._path, self._is_there = folder / STATUS, is_there
        self._process, self._begun = this_process(), time.time()
        self._eta: float | None = None
        self._end: End | None = None
        self._workers: Sequence[WorkerState] = ()
        self._messages: deque[Message] = deque(maxlen=KEPT)
        self._is_new, self._closing = False, threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Write the file, with the messages of an earlier process of the run, and continue to do so."""
        with contextlib.suppress(OSError, ValueError):
            self._messages.extendleft(reversed(read_status_file(self._path).messages))
        self._write()
        self._thread = threading.Thread(target=self._keep_writing, name="jaxrl-status", daemon=True)
        self._thread.start()

    def note(self, text: str) -> None:
        text = text if len(text) <= LONGEST else f"{text[: LONGEST // 4]} … {text[-LONGEST * 3 // 4 + 3 :]}"
        with self._lock:
            self._messages.append(Message(time.time(), text))
            self._is_new = True

    def update(self, record: Record, eta: float, compile_seconds: float, workers: Sequence[WorkerState] = ()) -> None:
        with self._lock:
            self._eta = _time_in(eta)
            self._workers, self._is_new = workers, True

    def compiling(self) -> None: ...

    def advance(self, rows: int, eta: float) -> None:
        with self._lock:
            self._eta = _time_in(eta)

    def end(self, state: str, reason: str) -> None:
        """Record how the run ended, unless that is recorded already. ``close`` writes it."""
        self._end = self._end or End(state, " ".join(reason.split())[:LONGEST], time.time())

    def close(self) -> None:
        """Write the file for the last time."""
        if self._thread is not None:
            self._stop()
            self._write()

    def delete(self) -> None:
        """Delete the file, of a run that leaves its folder as it was."""
        if self._thread is not None:
            self._stop()
            if self._is_there():
                with contextlib.suppress(OSError):
                    self._path.unlink()

    def _stop(self) -> None:
        self._closing.set()
        assert self._thread is not None
        self._thread.join()
        self._thread = None

    def _keep_writing(self) -> None:
        last = time.monotonic()
        while not self._closing.wait(PAUSE):
            if self._is_new or time.monotonic() - last >= BEAT:
                self._write()
                last = time.monotonic()

    def _write(self) -> None:
        with self._lock:
            self._is_new = False
            written = StatusFile(
                self._process, self._begun, time.time(), self._eta, self._end, list(self._workers), list(self._messages)
            )
        if self._is_there():
            with contextlib.suppress(OSError):
                write_atomically(self._path, _to_json(written, self._path.parent), durable=False)


def _time_in(seconds: float) -> float | None:
    return time.time() + seconds if math.isfinite(seconds) else None


@contextlib.contextmanager
def live_status(folder: Path) -> Iterator[LiveStatus]:
    """Keep the ``status.json`` of something other than a run, such as a sweep, and record how it ends."""
    status = LiveStatus(folder)
    status.begin()
    try:
        yield status
        status.end("finished", "done")
    except BaseException as error:
        status.end(*end_by(error))
        raise
    finally:
        status.close()


def _to_json(status: StatusFile, folder: Path) -> str:
    def relative(worker: WorkerState) -> dict[str, Any]:
        return worker._asdict() | {"log": worker.log and os.path.relpath(worker.log, folder)}

    body = {
        "format": FORMAT,
        "jaxrl": __version__,
        **status._asdict(),
        "process": status.process._asdict(),
        "end": status.end and status.end._asdict(),
        "workers": [relative(worker) for worker in status.workers],
        "messages": [message._asdict() for message in status.messages],
    }
    return json.dumps(without_nan(plain(body)), indent=1) + "\n"


def read_status_file(path: Path) -> StatusFile:
    """Read ``status.json``, which may be damaged or untrusted.

    Raises:
      OSError: it is absent, a link, or not a regular file.
      ValueError: it cannot be parsed, or another version of jaxrl wrote it; the message says which.
    """
    try:
        body = parse_json(read_end(path, MAX_BYTES))
        if type(body["format"]) is not int:
            raise TypeError
        if body["format"] != FORMAT:
            raise ValueError(
                f"jaxrl {str(body['jaxrl'])[:30]} wrote it in format {body['format']}, and jaxrl {__version__} reads format "
                f"{FORMAT}: use that version"
            )
        return _from_json(body)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError("it is damaged") from None


def _from_json(body: Any) -> StatusFile:
    process = ProcessIdentity(**body["process"])
    end = None if body["end"] is None else End(**body["end"])
    workers = [WorkerState(**each) for each in body["workers"]]
    messages = [Message(**each) for each in body["messages"]]
    pid, started = process.pid, process.started
    is_right = [
        type(pid) is int and 0 < pid < 2**31,
        started is None or type(started) is int,
        isinstance(process.host, str),
        end is None or (end.state in ENDS and isinstance(end.reason, str) and _is_time(end.time)),
        _is_time(body["begun"]) and _is_time(body["written"]) and (body["eta"] is None or _is_time(body["eta"])),
        all(isinstance(each.text, str) and _is_time(each.time) for each in messages),
        all(map(_is_worker, workers)),
    ]
    if not all(is_right):
        raise TypeError
    return StatusFile(process, body["begun"], body["written"], body["eta"], end, workers, messages[-KEPT:])


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e11


def _is_worker(worker: WorkerState) -> bool:
    numbers = (worker.steps_per_second, worker.lag)
    ends = [] if worker.envs is None else worker.envs
    return (
        all(number is None or type(number) in (int, float) for number in numbers)
        and type(worker.restarts) is int
        and isinstance(ends, list)
        and len(ends) in (0, 2)
        and all(type(end) is int for end in ends)
        and (worker.log is None or isinstance(worker.log, str))
    )

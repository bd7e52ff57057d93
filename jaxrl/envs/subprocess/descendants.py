"""Processes that a worker has started, wherever they are: a variable of their environment marks them. Imports no jax."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "JAXRL_WORKER"
"""Holds the mark of a worker. Its descendants inherit it, also those that leave its process group, or that init has adopted."""

PROCESSES = Path("/proc")

PATIENCE = 2.0
"""Seconds in which a process ends that was killed."""


def new_mark() -> str:
    """A mark for one worker, which begins with that of the worker that this process belongs to, if there is one."""
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    return f"{os.environ[VARIABLE]}/{mark}" if os.environ.get(VARIABLE) else mark


def end_marked(marks: Sequence[str]) -> None:
    """End every process with one of these marks but this one; none where the system does not show their environments.

    One may start another while it is looked for, so this looks until there are none.
    """
    texts, late = [f"{VARIABLE}={mark}".encode() for mark in marks], time.monotonic() + PATIENCE
    while (found := _marked(texts)) and time.monotonic() < late:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _marked(texts: Sequence[bytes]) -> list[int]:
    try:
        pids = [int(name) for name in os.listdir(PROCESSES) if name.isdecimal()]
    except OSError:
        return []
    return [pid for pid in pids if pid != os.getpid() and any(text in _environment(pid) for text in texts)]


def _environment(pid: int) -> bytes:
    """As the process began with; nothing for one that has ended, or is another user's."""
    try:
        return (PROCESSES / str(pid) / "environ").read_bytes()
    except OSError:
        return b""

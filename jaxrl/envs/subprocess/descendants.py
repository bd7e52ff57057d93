"""Descendants of a worker process, found by a mark in their environment variables. Does not import jax."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "JAXRL_WORKER"
"""Variable with the mark of a worker. All descendants inherit it, even those that leave its process group or outlive their
parent."""

PROCESSES = Path("/proc")

PATIENCE = 2.0
"""Seconds to wait for killed processes to end."""

STARTING = 0.5
"""Seconds to wait for the environments of processes that are starting a program."""


def new_mark() -> str:
    """Return a mark for a worker. It starts with the mark of the worker that this process belongs to, if any."""
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    return f"{os.environ[VARIABLE]}/{mark}" if os.environ.get(VARIABLE) else mark


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, as after SIGSTOP; False if the system cannot tell."""
    try:
        return (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def end_marked(marks: Sequence[str]) -> None:
    """Kill all processes with these marks, except this one. Does nothing if the system does not show their environments.

    A marked process may start another during the search, so the search repeats until none is found.
    """
    texts, begin = [f"{VARIABLE}={mark}".encode() for mark in marks], time.monotonic()
    while (took := time.monotonic() - begin) < PATIENCE:
        found, all_seen = _marked(texts)
        if not found and (all_seen or took > STARTING):
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _marked(texts: Sequence[bytes]) -> tuple[list[int], bool]:
    """Return the processes with a mark, and whether the environments of all processes were there to be read."""
    found, all_seen = [], True
    for folder in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            environment = (folder / "environ").read_bytes()
            if int(folder.name) != os.getpid() and any(text in environment for text in texts):
                found.append(int(folder.name))
            all_seen &= bool(environment) or not _is_starting(folder)
    return found, all_seen


def _is_starting(folder: Path) -> bool:
    """Return whether a process is starting a program, whose environment the system does not show yet.

    Its parent may already know that it runs.
    """
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    if len(fields) < 48:  # an older system
        return False
    memory, environment = int(fields[20]), int(fields[47])
    return memory > 0 and environment == 0  # threads of the system and zombies have no memory

"""State of processes that tests start."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def _state(folder: Path) -> str:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]


def runs(pid: int) -> bool:
    """Return True if a process runs. A process that has ended may be left as a zombie until its new parent reaps it."""
    try:
        return _state(Path(f"/proc/{pid}")) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop(pid: int) -> None:
    """Send SIGSTOP and wait until all threads are stopped: the system wakes an orphaned process only if they are."""
    os.kill(pid, signal.SIGSTOP)
    assert soon(lambda: is_stopped(pid))


def is_stopped(pid: int) -> bool:
    """Return True if all threads of a process are stopped."""
    return all(_state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir())


def soon(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Return True as soon as ``condition`` is true, False if it is not within ``seconds``."""
    late = time.monotonic() + seconds
    while not (fulfilled := condition()) and time.monotonic() < late:
        time.sleep(0.02)
    return fulfilled

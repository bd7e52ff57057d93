"""Processes that tests start, looked at from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def _state(folder: Path) -> str:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]


def runs(pid: int) -> bool:
    """Whether a process does anything still: one that has ended may wait for whoever inherited it."""
    try:
        return _state(Path(f"/proc/{pid}")) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop(pid: int) -> None:
    """SIGSTOP, until all threads stand still: the system wakes a process that has lost its parent only if they do by then."""
    os.kill(pid, signal.SIGSTOP)
    assert soon(lambda: all(_state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir()))


def soon(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether ``condition`` is true in time; once it is, it is not asked again."""
    late = time.monotonic() + seconds
    while not (fulfilled := condition()) and time.monotonic() < late:
        time.sleep(0.02)
    return fulfilled

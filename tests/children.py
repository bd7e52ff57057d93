"""Processes that tests start, looked at from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def runs(pid: int) -> bool:
    """Whether a process does anything still: one that has ended may wait for whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether ``condition`` is true in time; once it is, it is not asked again."""
    late = time.monotonic() + seconds
    while not (fulfilled := condition()) and time.monotonic() < late:
        time.sleep(0.02)
    return fulfilled

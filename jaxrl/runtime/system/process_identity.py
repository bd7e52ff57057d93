"""Identity of a process, which another process can look for later: pids are reused, and belong to one machine or container."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Literal, NamedTuple

PROCESSES = Path("/proc")

Sight = Literal["alive", "suspended", "gone", "out of sight"]
"""Outcome of a search. A process is out of sight on another machine, in another container, and after a restart of its machine
that cannot be told from another machine of the same name."""


class ProcessIdentity(NamedTuple):
    """Identity of a process. Parts that the system does not show are None."""

    host: str
    pid: int
    started: int | None
    """Time of its start, in the system's ticks since the machine started."""
    boot: str | None
    """Id of the start of the machine."""
    namespace: str | None
    """Id of the container whose processes the pid counts."""


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    return ProcessIdentity(socket.gethostname(), os.getpid(), _start_and_state(os.getpid())[0], *_machine())


def look_for(process: ProcessIdentity) -> Sight:
    """Look for a process. The answer is certain on Linux; on other systems, another process may have its pid by now."""
    if (process.host, process.boot, process.namespace) != (socket.gethostname(), *_machine()):
        return "out of sight"
    if process.started is None:
        return "alive" if _has_pid(process.pid) else "gone"
    started, state = _start_and_state(process.pid)
    if started != process.started or state in ("Z", "X"):  # a zombie has ended, and waits for its parent
        return "gone"
    return "suspended" if state in ("T", "t") else "alive"


def _machine() -> tuple[str | None, str | None]:
    """Return the boot id and the namespace of pids."""
    boot = namespace = None
    with contextlib.suppress(OSError):
        boot = (PROCESSES / "sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        namespace = os.readlink(PROCESSES / "self/ns/pid")
    return boot, namespace


def _start_and_state(pid: int) -> tuple[int | None, str]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (PROCESSES / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[19]), fields[0]
    return None, ""


def _has_pid(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True

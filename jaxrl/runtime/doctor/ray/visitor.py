"""``Visitor``: the actor that looks around on a node.

Needs the standard library only, since it is sent by value: so it also works on a node without jaxrl, or with another one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from jaxrl.runtime.doctor.ray.ports import faults_of

PATIENCE = 5.0
"""Seconds that a shared folder may take to show a new file. NFS looks for new files every few seconds."""

STORE = "--plasma_directory="
"""Flag of Ray's process of a node, the parent of this one: the folder of its object store."""


class Visitor:
    """Actor on one node."""

    def look(self, ports: list[tuple[str, int]]) -> dict[str, Any]:
        """Return the versions here or why there are none, faults of ``ports`` seen from here, and where the object store is."""
        import ray

        found: dict[str, Any] = {"python": sys.executable, "faults": faults_of(ports), "versions": {"ray": ray.__version__}}
        try:
            from jaxrl.runtime.remote.versions import full_versions

            found["versions"] |= full_versions()
        except Exception as error:
            found["broken"] = f"{type(error).__name__}: {error}"
        memory = os.statvfs("/dev/shm")
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
        folder = next((word.removeprefix(STORE) for word in command if word.startswith(STORE)), None)
        return found | {"shm": memory.f_blocks * memory.f_frsize, "store": folder}

    def clock(self) -> float:
        """Return the time in seconds since 1970."""
        return time.time()

    def block(self, size: int) -> bytes:
        return bytes(size)

    def write(self, path: str, text: str) -> str:
        """Write a file. Return the error, or an empty string."""
        try:
            Path(path).write_text(text)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def read(self, path: str, text: str) -> str:
        """Read a file that should have this text. Return the error, or an empty string."""
        return read(path, text, time.monotonic() + PATIENCE)


def read(path: str, text: str, deadline: float) -> str:
    """Read a file that should have this text, and wait for it up to a time. Return the error, or an empty string."""
    while True:
        try:
            if Path(path).read_text() == text:
                return ""
            fault = "it has other contents"
        except OSError as error:
            fault = error.strerror or str(error)
        if time.monotonic() > deadline:
            return fault
        time.sleep(0.1)

"""Date, command, hardware and load of a measurement. Standard library only."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import sys
from pathlib import Path
from typing import Any

BUSY = 0.5
"""Load, in running processes, above which measured speeds are unreliable."""


def command() -> str:
    """Return the command line as a user types it, with the names of absolute paths alone: those are of one machine."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "benchmarks", *words])


def timestamp() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def hardware() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "cpu": _this_cpu(),
        "cores": cores,
        "memory_bytes": memory,
        "system": platform.system(),
        "machine": platform.machine(),
    }


def processor(hardware: dict[str, Any]) -> str:
    """Return the name of the GPU or processor that measured, with its cores if it is a processor."""
    return hardware["gpu"] or f"{hardware['cpu']}, {hardware['cores']} core{'s' * (hardware['cores'] != 1)}"


def load() -> float | None:
    """Return the load average of the last minute, in running processes, or None where the system has none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def load_with_warning() -> float | None:
    """Return ``load()``. If other programs are at work, say on stderr that measured speeds are unreliable."""
    if (now := load()) is not None and now > BUSY:
        print(f"The machine is busy (load {now}), so these figures are unreliable. Measure on an idle machine.", file=sys.stderr)
    return now


def _this_cpu() -> str:
    try:
        return cpu_model(Path("/proc/cpuinfo").read_text())
    except OSError:
        return platform.processor()


def cpu_model(cpuinfo: str) -> str:
    """Return the name of the processor in the text of ``/proc/cpuinfo``.

    Virtual machines may hide the number in the name. The family and the model then tell generations apart.
    """
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in cpuinfo.splitlines())}
    name = facts.get("model name", platform.processor())
    if re.search(r"\d", name) or "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"

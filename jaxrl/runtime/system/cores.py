"""Cores that this process may use, and variables that set those of a child process. Does not import jax."""

from __future__ import annotations

import os
import re


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_devices(number: int) -> dict[str, str]:
    """Return variables that give a child process ``number`` CPU devices, regardless of the settings of this process."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    return {"JAX_NUM_CPU_DEVICES": str(number), "XLA_FLAGS": flags}


def cpu_worker(threads: int = 1) -> dict[str, str]:
    """Return variables for a child process that computes on the CPU only, with one XLA device of that number of threads."""
    return {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": str(threads), "OMP_NUM_THREADS": str(threads), **cpu_devices(1)}

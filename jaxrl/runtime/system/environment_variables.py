"""Environment variables of processes that this one starts."""

from __future__ import annotations

import os
import re


def cpu_devices(number: int) -> dict[str, str]:
    """By which another process has so many CPU devices, whatever this one was given."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    return {"JAX_NUM_CPU_DEVICES": str(number), "XLA_FLAGS": flags}

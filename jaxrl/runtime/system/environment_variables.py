"""Environment variables for child processes."""

from __future__ import annotations

import os
import re


def cpu_devices(number: int) -> dict[str, str]:
    """Return variables that give a child process ``number`` CPU devices, regardless of the settings of this process."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    return {"JAX_NUM_CPU_DEVICES": str(number), "XLA_FLAGS": flags}

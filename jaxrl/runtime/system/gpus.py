"""NVIDIA GPUs of this machine, found without JAX."""

from __future__ import annotations

import os
from pathlib import Path


def count_gpus(dev: Path = Path("/dev")) -> int:
    """Return the number of NVIDIA GPUs among the devices that the system lists in the folder ``dev``."""
    return len(list(dev.glob("nvidia[0-9]*")))


def gpus_excluded() -> bool:
    """Return whether JAX_PLATFORMS excludes GPUs."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    return bool(asked) and not {"cuda", "gpu"} & set(asked.split(","))

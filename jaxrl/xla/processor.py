"""The cache of this machine's processor, for which ``jaxrl.xla.cache_blocking`` cuts batches."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

VENDORS = ("AuthenticAMD",)
"""Makers of processors on which cut batches were measured to be faster. On an Intel Xeon with 2 MiB per core, PPO with
512 environments is 1.2 times as fast uncut (AVX-512)."""
CORES = 2
"""XLA computes the products of one program on several cores, and a part is to fit in the second-level caches of two."""
USUAL_BYTES = 1 << 20
"""Second-level cache of a core, where the system does not say."""


@functools.cache
def cache_to_fill(root: Path = Path("/")) -> int:
    """Return the bytes of second-level cache that a part of a batch may fill, or 0 if batches should stay whole.

    Args:
      root: folder with ``proc`` and ``sys``.
    """
    return CORES * _second_level_bytes(root) if _vendor(root) in VENDORS else 0


def _vendor(root: Path) -> str:
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "vendor_id":
                return value.strip()
    return ""


def _second_level_bytes(root: Path) -> int:
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with contextlib.suppress(OSError, ValueError):
            if (index / "level").read_text().strip() == "2":
                return int((index / "size").read_text().strip().removesuffix("K")) << 10
    return USUAL_BYTES

"""Available memory, and the check that the replay buffers of a run fit."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # remote objects use this file without JAX
    import jax

    from jaxrl.types import Agent

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def check_replay_fits(agent: Agent, needed: int, num_seeds: int, devices: Sequence[jax.Device]) -> None:
    """Check that replay buffers fit into the available memory, before they are allocated.

    Args:
      needed: bytes of the replay buffers of all seeds.
      devices: devices over which the buffers are spread.

    Raises:
      ValueError: they do not fit. Never raised if the available memory is unknown.
    """
    available = available_bytes(devices) if needed else None
    if available is None or needed <= available:
        return
    rows = agent.spec["settings"].get("buffer_size")
    problem = f"replay of {num_seeds} seed{'s' * (num_seeds > 1)} takes {show_bytes(needed)}"
    if num_seeds > 1:
        problem += f", {show_bytes(needed // num_seeds)} each"
    if rows:
        problem = f"buffer_size={rows}: the {problem} ({needed / num_seeds / rows:.0f} bytes per row)"
    raise ValueError(
        f"{problem}, but only {show_bytes(available)} of memory is available: use a smaller buffer_size, or fewer seeds"
    )


def available_bytes(devices: Sequence[jax.Device]) -> int | None:
    """Return the total free memory of these devices in bytes; None if unknown."""
    if devices[0].platform == "cpu":
        return available_on_host()
    statistics = [device.memory_stats() for device in devices]
    if not all(each and "bytes_limit" in each for each in statistics):
        return None
    return sum(each["bytes_limit"] - each.get("bytes_in_use", 0) for each in statistics)


def available_on_host() -> int | None:
    """Return the bytes of memory available to this process; None if unknown."""
    return min((n for n in (_free_on_host(), _left_to_group()) if n is not None), default=None)


def _free_on_host() -> int | None:
    """Return the memory that Linux reports as available, swap included."""
    try:
        sizes = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return sum(int(sizes[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None


def _left_to_group() -> int | None:
    """Return the memory left under a container's limit. Inactive cached files count as free."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())["inactive_file"]
        return limit - used + int(cached)
    return None


def show_bytes(count: int) -> str:
    """Format bytes in the largest unit that gives a value of at least one."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count} bytes"

"""How much memory there is, and whether a run's replay fits."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import jax

from jaxrl.types import Agent

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def check_replay_fits(agent: Agent, needed: int, num_seeds: int, devices: Sequence[jax.Device]) -> None:
    """Refuse replay that is larger than the memory that is available, before any of it is allocated.

    Args:
      needed: bytes that the replay of all seeds takes.
      devices: over which they are spread.

    Raises:
      ValueError: it does not fit. Where the memory is not known nothing is refused.
    """
    available = available_bytes(devices) if needed else None
    if available is None or needed <= available:
        return
    rows = agent.spec["settings"].get("buffer_size")
    what = f"replay of {num_seeds} seed{'s' * (num_seeds > 1)} takes {show_bytes(needed)}"
    if num_seeds > 1:
        what += f", {show_bytes(needed // num_seeds)} each"
    if rows:
        what = f"buffer_size={rows}: the {what} ({needed / num_seeds / rows:.0f} bytes a row)"
    raise ValueError(f"{what}, and {show_bytes(available)} of memory are available: use a smaller buffer_size, or fewer seeds")


def available_bytes(devices: Sequence[jax.Device]) -> int | None:
    """Memory of these devices that is free, all together; None where it is not known."""
    if devices[0].platform == "cpu":
        return available_on_host()
    statistics = [device.memory_stats() for device in devices]
    if not all(each and "bytes_limit" in each for each in statistics):
        return None
    return sum(each["bytes_limit"] - each.get("bytes_in_use", 0) for each in statistics)


def available_on_host() -> int | None:
    """Bytes that processes could have; None where that is not known."""
    return min((n for n in (_free_on_host(), _left_to_group()) if n is not None), default=None)


def _free_on_host() -> int | None:
    """What Linux says could be had, with its swap."""
    try:
        sizes = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return sum(int(sizes[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None


def _left_to_group() -> int | None:
    """What a container's limit leaves: of what it holds, files that are not in use could be given up."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())["inactive_file"]
        return limit - used + int(cached)
    return None


def show_bytes(count: int) -> str:
    """In the largest unit of which there is one at least."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count} bytes"

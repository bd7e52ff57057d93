"""Assignments of each process of a group on this machine: its place in the group, and its share of the devices."""

from __future__ import annotations

import importlib.util
import itertools
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl.runtime.distributed.cluster import COORDINATOR, HEARTBEAT, NUM_PROCESSES, PROCESS_ID
from jaxrl.runtime.distributed.messages import SECRET
from jaxrl.runtime.system.cores import cpu_devices, usable_cores
from jaxrl.runtime.system.gpus import count_gpus, gpus_excluded

GPUS = "CUDA_VISIBLE_DEVICES"


class RankLayout(NamedTuple):
    """Devices of a group."""

    variables: list[dict[str, str]]
    """Environment variables of each process."""
    shown: str
    """Description of the layout."""
    advice: str | None
    """One line, if fewer devices would be faster."""


def lay_out(processes: int, each: int | None) -> RankLayout:
    """Divide devices among processes, ``each`` per process: GPUs if JAX would use any, else CPU devices. None: one CPU device, or
    an equal share of the GPUs. Raise ValueError if there are too few GPUs."""
    gpus = visible_gpus()
    if not gpus:
        each, cores = each or 1, usable_cores()
        many = f"{processes * each} CPU devices share {cores} core{'s' * (cores > 1)}: for tests only, since this is slower"
        return RankLayout(
            [cpu_devices(each)] * processes,
            f"{each} CPU device{'s' * (each > 1)} each",
            many if processes * each > cores else None,
        )
    share = each or max(1, len(gpus) // processes)
    if processes * share > len(gpus):
        raise ValueError(
            f"processes={processes} with {share} GPU{'s' * (share > 1)} each need more than the {len(gpus)} that "
            f"{'are' if len(gpus) > 1 else 'is'} visible: use fewer, or set JAX_PLATFORMS=cpu to use CPU devices"
        )
    shares = [",".join(gpus[i * share : (i + 1) * share]) for i in range(processes)]
    shown = ", ".join(f"GPU {gpus} for process {number}" for number, gpus in enumerate(shares))
    return RankLayout([{GPUS: gpus, **cpu_devices(1)} for gpus in shares], shown, None)


def visible_gpus(dev: Path = Path("/dev")) -> Sequence[str]:
    """Return the NVIDIA GPUs that JAX would use, by their numbers or names in CUDA."""
    if gpus_excluded() or not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return []
    if (visible := os.environ.get(GPUS)) is not None:
        return list(itertools.takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, visible.split(","))))
    return [str(number) for number in range(count_gpus(dev))]


def places(processes: int, heartbeat: float) -> list[dict[str, str]]:
    """Return the variables of each process of a new group: the address where they meet, its number, and the group's secret."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    group = {COORDINATOR: address, NUM_PROCESSES: str(processes), HEARTBEAT: f"{heartbeat:g}", SECRET: secrets.token_hex(32)}
    return [{**group, PROCESS_ID: str(number)} for number in range(processes)]

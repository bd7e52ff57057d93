"""What each process of a group on this machine gets: its place in the group, and its share of the devices."""

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
from jaxrl.runtime.system.devices import usable_cores
from jaxrl.runtime.system.environment_variables import cpu_devices

GPUS = "CUDA_VISIBLE_DEVICES"


class RankLayout(NamedTuple):
    """The devices of a group."""

    variables: list[dict[str, str]]
    """Of each process's environment."""
    shown: str
    """What was chosen, in words."""
    advice: str | None
    """One line, if fewer would serve better."""


def lay_out(processes: int, each: int | None) -> RankLayout:
    """Share devices out: GPUs where JAX would use some, else CPU devices.

    Args:
      each: devices per process; None: one CPU device, or as many GPUs as there are for each.

    Raises:
      ValueError: there are too few GPUs.
    """
    gpus = visible_gpus()
    if not gpus:
        each, cores = each or 1, usable_cores()
        many = f"{processes * each} CPU devices share {cores} core{'s' * (cores > 1)}: that is for trying out, and slower"
        return RankLayout(
            [cpu_devices(each)] * processes,
            f"{each} CPU device{'s' * (each > 1)} each",
            many if processes * each > cores else None,
        )
    share = each or max(1, len(gpus) // processes)
    if processes * share > len(gpus):
        raise ValueError(
            f"processes={processes} with {share} GPU{'s' * (share > 1)} each are more than the {len(gpus)} that there "
            f"{'are' if len(gpus) > 1 else 'is'}: ask for fewer, or set JAX_PLATFORMS=cpu to use CPU devices"
        )
    shares = [",".join(gpus[i * share : (i + 1) * share]) for i in range(processes)]
    shown = ", ".join(f"GPU {gpus} for process {number}" for number, gpus in enumerate(shares))
    return RankLayout([{GPUS: gpus, **cpu_devices(1)} for gpus in shares], shown, None)


def visible_gpus(dev: Path = Path("/dev")) -> Sequence[str]:
    """The NVIDIA GPUs that JAX would use, by the numbers or names that CUDA knows them by."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked and not {"cuda", "gpu"} & set(asked.split(",")):
        return []
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return []
    if (given := os.environ.get(GPUS)) is not None:
        return list(itertools.takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, given.split(","))))
    return [str(number) for number in range(len(list(dev.glob("nvidia[0-9]*"))))]


def places(processes: int, heartbeat: float) -> list[dict[str, str]]:
    """Variables that tell each process of a new group where they meet, which it is, and a secret that no other process has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    group = {COORDINATOR: address, NUM_PROCESSES: str(processes), HEARTBEAT: f"{heartbeat:g}", SECRET: secrets.token_hex(32)}
    return [{**group, PROCESS_ID: str(number)} for number in range(processes)]

"""Selection of the driver that trains: by the agent's kind of environment, and by the arguments of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxrl.parallel import check_devices
from jaxrl.runtime.actors.scheme import Scheme
from jaxrl.runtime.actors.several_processes import GroupDriver, sharing
from jaxrl.runtime.actors.trainer import open_actors
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.samplers.by_name import SAMPLERS
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.runtime.trainers.device_layout import open_fused
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.runtime.trainers.trainer import Driver
from jaxrl.settings.validation import check_count
from jaxrl.types import Agent, HostEnv


def check_one_way(scheme: Scheme | None, sampler: str, overlap: bool) -> None:
    """Check that a scheme is not combined with ``sampler`` or ``overlap``, which it replaces."""
    if scheme is not None and (overlap or sampler != "sync"):
        which = "overlap=True" if overlap else f"sampler={sampler!r}"
        raise ValueError(f"{which} is for environments in this process: leave it out, or use the scheme's clock= and lag=")


def check_shared_out(agent: Agent, devices_per_seed: int) -> None:
    """Check that the environments of a seed can be divided evenly among devices."""
    if isinstance(agent.env, HostEnv):
        raise ValueError(
            f"devices_per_seed={devices_per_seed} is for environments in JAX, and {agent.env.name} runs on the host: use "
            "scheme='ddppo' there"
        )
    check_devices(agent, check_count("devices_per_seed", devices_per_seed))


def devices_for(agent: Agent, before: int | None) -> int | None:
    """Return the recorded number of devices per seed if this machine has as many devices; else None, for the default."""
    if before is None or isinstance(agent.env, HostEnv):
        return None
    request_cpu_devices()
    return before if before <= jax.device_count() else None


def open_driver(
    agent: Agent,
    seeds: list[int],
    sampler: str = "sync",
    overlap: bool = False,
    scheme: Mapping[str, Any] | None = None,
    log_folder: Path | None = None,
    note: Callable[[str], None] = print,
    devices_per_seed: int | None = None,
) -> tuple[Driver, list[jax.Device], str | None]:
    """Return the driver for the agent's kind of environment, its devices, and advice about them."""
    if scheme is not None:
        return open_actors(agent, seeds, Scheme(**scheme), log_folder, note), jax.local_devices()[:1], None
    if isinstance(agent.env, HostEnv):
        collects: Any = SAMPLERS[sampler]
        driver: Driver
        if not current().is_alone:
            part = sharing(agent)
            driver = GroupDriver(agent, seeds, lambda _, seeds: collects(part, seeds), lag=int(overlap))
        else:
            driver = HostDriver(agent, seeds, collects, lag=int(overlap))
        return driver, jax.local_devices()[:1], None
    fused, layout = open_fused(agent, seeds, devices_per_seed)
    return fused, layout.devices, layout.advice

"""The driver of a scheme: a learner in this process, and workers as the scheme has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from jaxrl.runtime.actors.central import CentralSampler
from jaxrl.runtime.actors.gradients import AllReducedDriver, MeanDriver, PartDriver
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.actors.scheme import Scheme
from jaxrl.runtime.drivers.asynchronous import AsyncSampler
from jaxrl.runtime.drivers.host import HostDriver
from jaxrl.runtime.drivers.sampler import HostSampler
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.types import Agent


def open_actors(
    agent: Agent, seeds: Sequence[int], scheme: Scheme, log_folder: Path | None, note: Callable[[str], None]
) -> HostDriver:
    """
    Args:
      scheme: as ``resolve_scheme`` gives it.
      log_folder: where workers' output goes; None: to where this process's goes.
      note: is told what befalls workers.
    """
    if scheme.inference == "learner":
        central = partial(
            CentralSampler,
            sampler=AsyncSampler if scheme.clock == "async" else HostSampler,
            num_workers=scheme.num_workers,
            max_restarts=scheme.max_restarts,
            timeout=scheme.timeout,
            log_folder=log_folder,
        )
        return HostDriver(agent, seeds, central, lag=scheme.lag)
    pool = partial(
        ActorPool,
        num_workers=scheme.num_workers,
        clock=scheme.clock,
        max_restarts=scheme.max_restarts,
        timeout=scheme.timeout,
        pin=scheme.pin,
        gradients=scheme.gradients == "workers",
        log_folder=log_folder,
        note=note,
    )
    driver: type[HostDriver] = HostDriver
    if scheme.updates == "all_reduced":
        driver = AllReducedDriver
        request_cpu_devices()
    elif scheme.gradients == "workers":
        driver = PartDriver if scheme.clock == "async" else MeanDriver
    return driver(agent, seeds, pool, lag=scheme.lag, threaded=False)

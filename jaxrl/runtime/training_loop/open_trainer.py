"""Selection of the driver that trains: by the agent's kind of environment, and by the settings of the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxrl.runtime.actors.population_pool import PopulationPool
from jaxrl.runtime.actors.several_processes import GroupDriver, sharing
from jaxrl.runtime.actors.trainer import open_actors
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.samplers.by_name import SAMPLERS
from jaxrl.runtime.samplers.population import PopulationSampler
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.runtime.trainers.device_layout import open_fused
from jaxrl.runtime.trainers.host import HostDriver, PopulationLearner
from jaxrl.runtime.trainers.trainer import Driver
from jaxrl.runtime.training_loop.run_config import Collection
from jaxrl.types import Agent, HostEnv


def devices_for(agent: Agent, before: int | None) -> int | None:
    """Return the recorded number of devices per seed if this machine has as many devices; else None, for the default."""
    if before is None or agent.collects_on_host:
        return None
    request_cpu_devices()
    return before if before <= jax.device_count() else None


def open_population(
    agent: Agent, seeds: list[int], collection: Collection, log_folder: Path | None, note: Callable[[str], None]
) -> Driver:
    """Return the driver of a population on host environments."""
    sampler: Any = PopulationSampler
    if (scheme := collection.scheme) is not None:
        sampler = partial(PopulationPool, scheme=scheme, log_folder=log_folder, note=note)
    return HostDriver(agent, seeds, sampler, learner_of=PopulationLearner)


def open_driver(
    agent: Agent,
    seeds: list[int],
    collection: Collection,
    devices_per_seed: int | None = None,
    log_folder: Path | None = None,
    note: Callable[[str], None] = print,
) -> tuple[Driver, list[jax.Device], str | None]:
    """Return the driver for the agent's kind of environment, its devices, and advice about them."""
    if agent.is_offline:
        fused, layout = open_fused(agent, seeds, devices_per_seed)
        return fused, layout.devices, layout.advice
    if agent.episodes and isinstance(agent.env, HostEnv):
        opened = open_population(agent, seeds, collection, log_folder, note)
        return opened, jax.local_devices()[:1], None
    if collection.scheme is not None:
        return open_actors(agent, seeds, collection.scheme, log_folder, note), jax.local_devices()[:1], None
    if isinstance(agent.env, HostEnv):
        collects: Any = SAMPLERS[collection.sampler]
        driver: Driver
        if not current().is_alone:
            part = sharing(agent)
            driver = GroupDriver(agent, seeds, lambda _, seeds: collects(part, seeds), lag=int(collection.overlap))
        else:
            driver = HostDriver(agent, seeds, collects, lag=int(collection.overlap))
        return driver, jax.local_devices()[:1], None
    fused, layout = open_fused(agent, seeds, devices_per_seed)
    return fused, layout.devices, layout.advice

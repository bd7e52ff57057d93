"""Driver of a scheme: a learner in this process, and the scheme's workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxrl.runtime.actors.central_inference import CentralSampler, in_processes, is_threaded
from jaxrl.runtime.actors.gradients import AllReducedLearner, MeanLearner, PartDriver
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.actors.scheme import Scheme
from jaxrl.runtime.actors.several_processes import GroupDriver, check_scheme, own_part
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.samplers.asynchronous import AsyncSampler
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.runtime.system.cores import usable_cores
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.types import Agent


def open_actors(
    agent: Agent, seeds: Sequence[int], scheme: Scheme, log_folder: Path | None, note: Callable[[str], None]
) -> HostDriver:
    """Open the driver of a scheme, as given by ``resolve_scheme``; see ``ActorPool`` for the other arguments."""
    group, collecting = current(), agent
    if not group.is_alone:
        check_scheme(scheme)
        collecting = own_part(agent)
    if log_folder is not None:
        log_folder = make_log_folder(log_folder, *([] if group.is_alone else [f"process-{group.process_id}"]))
    faults: dict[str, Any] = {"max_restarts": scheme.max_restarts, "timeout": scheme.timeout, "log_folder": log_folder}
    driver: Callable[..., HostDriver] = HostDriver
    sampler: Any
    if scheme.inference == "learner":
        stepping = AsyncSampler if scheme.clock == "async" else HostSampler
        sampler = partial(CentralSampler, sampler=stepping, num_workers=scheme.num_workers, **faults)
    else:
        sampler = partial(
            ActorPool,
            num_workers=scheme.num_workers,
            clock=scheme.clock,
            pin=scheme.pin,
            gradients=scheme.gradients == "workers",
            sync_fraction=scheme.sync_fraction,
            engine=scheme.engine,
            placement=scheme.placement,
            insecure=scheme.insecure,
            note=note,
            offset=group.process_id * collecting.num_envs,
            **faults,
        )
    if not group.is_alone:
        driver = GroupDriver
    elif scheme.updates == "all_reduced":
        request_cpu_devices()
        driver = partial(HostDriver, learner_of=AllReducedLearner)
    elif scheme.gradients == "workers":
        driver = PartDriver if scheme.clock == "async" else partial(HostDriver, learner_of=MeanLearner)
    here = min(scheme.num_workers, usable_cores()) if scheme.engine == "ray" else scheme.num_workers
    evaluated = agent if is_threaded(agent) else agent._replace(env=in_processes(agent, here, **faults))
    return driver(evaluated, seeds, lambda _, seeds: sampler(collecting, seeds), lag=scheme.lag)


def make_log_folder(top: Path, *inside: str) -> Path:
    """Create a folder of a run for logs. Symbolic links in its place are removed, since the run may come from an untrusted
    source."""
    folder = top
    for folder in itertools.accumulate(inside, Path.joinpath, initial=top):
        if folder.is_symlink():
            folder.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
    return folder

"""The slots of a search divided over processes, here or on the machines of a cluster of Ray.

What a search decides depends on the number of processes only by rounding; with groups, not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl.runtime.remote.cluster import Cluster, RemoteObject, open_cluster
from jaxrl.runtime.search.lanes.divided_lanes import DividedLanes, open_lanes
from jaxrl.runtime.search.lanes.lanes import build
from jaxrl.runtime.search.search_file import SearchFile, read_search
from jaxrl.runtime.system.devices import enable_compilation_cache
from jaxrl.settings.validation import Range, check_count, check_number, check_switches


class Jobs(NamedTuple):
    """Processes that share the slots of a search."""

    number: int
    engine: str = "local"
    """"local", or "ray": the cluster that RAY_ADDRESS names, or one that is started here."""
    cpus: int = 1
    """Cores of each."""
    gpus: float = 0.0
    insecure: bool = False
    """Join a cluster that asks for no token, where anyone who reaches it can run programs."""

    def check(self, search: SearchFile) -> Jobs:
        """Return the settings after checking them."""
        number, cpus = check_count("jobs", self.number), check_count("cpus", self.cpus)
        check_number("gpus", self.gpus, Range(0))
        check_switches(insecure=self.insecure)
        if search.options.batch % number:
            raise ValueError(f"batch = {search.options.batch} must be a multiple of jobs={number}, which share the slots evenly")
        if (groups := search.options.groups) is not None and groups % number:
            raise ValueError(f"groups = {groups} must be a multiple of jobs={number}, which share them evenly")
        return self._replace(number=number, cpus=cpus)

    def open(self, log_folder: Path, note: Any) -> Cluster:
        """Open the place for the processes."""
        keywords: dict[str, Any] = {"insecure": self.insecure} if self.engine == "ray" else {"cpus": self.number * self.cpus}
        return open_cluster(self.engine, log_folder=log_folder, note=note, **keywords)


class LanesWorker:
    """Remote object that holds the slots of one process."""

    def __init__(self, entries: Mapping[str, Any], structure: Mapping[str, Any], slots: int) -> None:
        """``entries`` are those of the search file."""
        enable_compilation_cache()
        self._lanes = open_lanes(read_search(entries), structure, slots, jax.local_devices())

    def do(self, method: str, *args: Any) -> Any:
        """Call a method of the slots."""
        return getattr(self._lanes, method)(*args)


class RemotePart:
    """Part of the slots that is in another process."""

    def __init__(self, worker: RemoteObject) -> None:
        self.worker = worker

    def call(self, method: str, *args: Any) -> Future[Any]:
        """See ``Part``. The result raises WorkerLost if the process was lost."""
        return self.worker.call("do", method, *args)

    def close(self) -> None:
        """End the process."""
        self.worker.close()


def open_remote_lanes(cluster: Cluster, jobs: Jobs, search: SearchFile, structure: Mapping[str, Any]) -> DividedLanes:
    """Start the processes, and return their slots."""
    arguments = (dict(search.plain), dict(structure), search.options.batch // jobs.number)
    parts = [RemotePart(cluster.start(LanesWorker, *arguments, cpus=jobs.cpus, gpus=jobs.gpus)) for _ in range(jobs.number)]
    return DividedLanes(build(search, structure), parts, search.options.batch)

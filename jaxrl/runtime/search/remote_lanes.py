"""``RemoteLanes``: the slots of a search divided over processes, here or on the machines of a cluster of Ray.

All of them train for one part at a time, and the results come in the order of slots. So what a search decides depends
on the number of processes only by rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.runtime.remote.cluster import Cluster, open_cluster
from jaxrl.runtime.search.lanes import Lanes, build
from jaxrl.runtime.search.search_file import SearchFile, read_search
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
        return self._replace(number=number, cpus=cpus)

    def open(self, log_folder: Path, note: Any) -> Cluster:
        """Open the place for the processes."""
        keywords: dict[str, Any] = {"insecure": self.insecure} if self.engine == "ray" else {"cpus": self.number * self.cpus}
        return open_cluster(self.engine, log_folder=log_folder, note=note, **keywords)


class LanesWorker:
    """Remote object that holds the slots of one process."""

    def __init__(self, entries: Mapping[str, Any], structure: Mapping[str, Any], slots: int) -> None:
        """``entries`` are those of the search file."""
        from jaxrl.runtime.system.devices import enable_compilation_cache

        enable_compilation_cache()
        self._lanes = Lanes.of(read_search(entries), structure, slots)

    def refill(self, trials: Mapping[int, Mapping[str, float]], total_steps: int) -> None:
        self._lanes.refill(trials, total_steps)

    def train(self, iterations: int) -> int:
        return self._lanes.train(iterations)

    def test(self, slots: Sequence[int], ages: Sequence[int], episodes: int) -> np.ndarray:
        return self._lanes.test(slots, ages, episodes)

    def save(self, folder: str, step: int, job: int, jobs: int) -> None:
        self._lanes.save(Path(folder), step, job, jobs)

    def restore(self, folder: str, step: int, job: int, jobs: int) -> None:
        self._lanes.restore(Path(folder), step, job, jobs)

    def compile_seconds(self) -> float:
        return self._lanes.compile_seconds


class RemoteLanes:
    """All slots, with the functions of ``Lanes``. They raise WorkerLost if a process was lost."""

    def __init__(self, cluster: Cluster, jobs: Jobs, search: SearchFile, structure: Mapping[str, Any]) -> None:
        self._each = search.options.batch // jobs.number
        self.agent, self._num_seeds = build(search, structure), len(search.seeds)
        self._workers = [
            cluster.start(LanesWorker, dict(search.plain), dict(structure), self._each, cpus=jobs.cpus, gpus=jobs.gpus)
            for _ in range(jobs.number)
        ]
        self.compile_seconds = 0.0

    def _call(self, method: str, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Call a method of several workers at once: number -> arguments. Return number -> result."""
        pending = {number: self._workers[number].call(method, *args) for number, args in arguments.items()}
        return {number: future.result() for number, future in pending.items()}

    def _all(self, method: str, *args: Any) -> list[Any]:
        return [*self._call(method, {number: args for number in range(len(self._workers))}).values()]

    def refill(self, trials: Mapping[int, Mapping[str, float]], total_steps: int) -> None:
        """See ``Lanes``."""
        parts: dict[int, dict[int, Mapping[str, float]]] = {}
        for slot, hyperparams in trials.items():
            parts.setdefault(slot // self._each, {})[slot % self._each] = hyperparams
        self._call("refill", {number: (part, total_steps) for number, part in parts.items()})

    def train(self, iterations: int) -> int:
        """See ``Lanes``."""
        rows: int = sum(self._all("train", iterations))
        self.compile_seconds = max(self._all("compile_seconds"))
        return rows

    def test(self, slots: Sequence[int], ages: Sequence[int], episodes: int) -> np.ndarray:
        """See ``Lanes``."""
        places: dict[int, list[int]] = {}
        for place, slot in enumerate(slots):
            places.setdefault(slot // self._each, []).append(place)
        arguments = {
            number: ([slots[i] % self._each for i in here], [ages[i] for i in here], episodes) for number, here in places.items()
        }
        returns = np.empty((len(slots), self._num_seeds))
        for number, rows in self._call("test", arguments).items():
            returns[places[number]] = rows
        return returns

    def save(self, folder: Path, step: int) -> None:
        """See ``Lanes``: each process saves its slots."""
        self._at("save", folder, step)

    def restore(self, folder: Path, step: int) -> None:
        """See ``Lanes``."""
        self._at("restore", folder, step)

    def _at(self, method: str, folder: Path, step: int) -> None:
        jobs = len(self._workers)
        self._call(method, {job: (str(folder), step, job, jobs) for job in range(jobs)})

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()

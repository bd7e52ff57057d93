"""Worker of all sides. It times a program's training from scratch, and later evaluates the trained policies.

python -m benchmarks.jaxrl_side CASE jaxrl    a case as JSON; jaxrl, or random for the bound
python -m benchmarks.rejax_peer CASE          a peer, in a separate virtual environment
"""

from __future__ import annotations

import contextlib
import platform
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from benchmarks.cases import Case
from benchmarks.protocol import serve

PACKAGES = ("jax", "jaxlib", "flax", "optax", "gymnax", "gymnasium", "envpool", "minatar", "stable_baselines3", "torch", "numpy")
"""Packages whose versions are recorded if installed."""
EPISODES = 128
"""Greedy episodes per trained policy."""


class Program(Protocol):
    """One side of a case.

    A program may also have a method ``prepare``, which is not timed. It takes the seeds and returns the argument of ``train``.
    """

    name: str
    version: str
    total_steps: int

    def compile(self) -> tuple[float, int]:
        """Trace and compile everything that training needs. Return ``(seconds, parameters of one seed's networks)``."""
        ...

    def train(self, seeds: Any) -> tuple[Any, int]:
        """Train from scratch and wait for the end. Return ``(states, environment steps of all seeds)``."""
        ...

    def policies(self, states: Any) -> Any:
        """Return the greedy policy of each seed: leaves [num_seeds, ...]."""
        ...

    def evaluate(self, policies: Any, keys: Any) -> Any:
        """Return the mean return of ``EPISODES`` greedy episodes of each of n policies: f32[n]."""
        ...


class Session:
    """A program under measurement. Its public methods are the worker's commands."""

    def __init__(self, program: Program, case: Case) -> None:
        self._program, self._case = program, case
        self._trained: dict[int, list[Any]] = {}
        """First seed -> policies. A repeated section replaces the policies of its first try."""

    def compile(self) -> dict[str, Any]:
        devices = jax.devices()  # starts the backend, which must not count as compilation
        seconds, parameters = self._program.compile()
        return {
            "compile_seconds": seconds,
            "parameters": parameters,
            "total_steps": self._program.total_steps,
            "name": self._program.name,
            "versions": {
                self._program.name: self._program.version,
                "python": platform.python_version(),
                **installed_versions(),
            },
            "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in devices],
        }

    def train(self, first_seed: int, keep: bool = True) -> dict[str, Any]:
        """Run the timed section: the case's runs, one after the other, each with different seeds."""
        first = np.arange(self._case.runs_per_section)[:, None] * self._case.num_seeds
        seeds = (first_seed + first + np.arange(self._case.num_seeds)).astype(np.uint32)
        prepare = getattr(self._program, "prepare", lambda seeds: seeds)
        runs = [prepare(run) for run in seeds]
        start = time.perf_counter()
        trained, steps = zip(*(self._program.train(run) for run in runs), strict=True)
        seconds = time.perf_counter() - start
        if keep:
            self._trained[first_seed] = [jax.device_get(self._program.policies(states)) for states in trained]
        return {"seconds": seconds, "env_steps": int(sum(steps)), "peak_bytes": peak_memory()}

    def evaluate(self) -> dict[str, Any]:
        """Return the returns of all kept policies, one per seed."""
        trained = [policies for section in self._trained.values() for policies in section]
        policies = jax.tree.map(lambda *leaves: np.concatenate(leaves), *trained)
        keys = jax.random.split(jax.random.key(2**31), len(jax.tree.leaves(policies)[0]))
        return {"returns": np.asarray(self._program.evaluate(policies, keys), np.float64).tolist()}

    def launches(self) -> dict[str, Any]:
        """Count the kernels that a GPU ran in one section."""
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                self.train(0, keep=False)
            (profile,) = Path(folder).rglob("*.xplane.pb")
            return {"launches": count_launches(jax.profiler.ProfileData.from_file(str(profile)).planes)}


def installed_versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def count_launches(planes: Iterable[Any]) -> int:
    """Count the events on the streams of GPUs in a profile."""
    lines = [line for plane in planes if plane.name.startswith("/device:GPU") for line in plane.lines]
    return sum(1 for line in lines if line.name.startswith("Stream") for _ in line.events)


def peak_memory() -> int:
    """Return the peak memory in bytes: the accelerator's if there is one, else this process's largest resident size so far."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))
    try:  # not getrusage, which also counts the process before exec
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def count_parameters(params: Any) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))


def serve_program(program: Program, case: Case) -> None:
    session = Session(program, case)
    serve({name: getattr(session, name) for name in ("compile", "train", "evaluate", "launches")})

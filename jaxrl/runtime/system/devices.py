"""Devices of a run, and the cache of compiled programs."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl.envs import runs_on_host
from jaxrl.runtime.system.cores import usable_cores
from jaxrl.runtime.system.disk import at_home
from jaxrl.types import PyTree
from jaxrl.xla.private_jax import setting

CACHE_VARIABLE = "JAXRL_CACHE_DIR"


def threads_per_worker(num_workers: int) -> int:
    """Return the number of threads for the environments of each worker, if they use threads.

    All workers together get one thread per core, except one core for the learner. A worker's policy needs no extra core, as it
    and the environments wait for each other.
    """
    return max(1, (usable_cores() - 1) // num_workers)


def shard_count(num_seeds: int, num_devices: int) -> int:
    """Return how many devices the seeds are sharded over: the largest divisor of ``num_seeds`` up to ``num_devices``."""
    return next(n for n in range(min(num_seeds, num_devices), 0, -1) if num_seeds % n == 0)


def request_cpu_devices() -> None:
    """Ask JAX for one CPU device per core, which is possible only before its backend starts.

    A device does the work of about one core, and JAX's default is a single device. A setting of the user is kept.
    """
    if setting("jax_num_cpu_devices") < 0 and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # the backend has started and keeps its devices
            jax.config.update("jax_num_cpu_devices", usable_cores())


LARGE = 2**26
"""Bytes of an array from which ``gathered`` leaves it on several devices, so that the memory of large replays is not doubled."""


def gathered(tree: PyTree) -> PyTree:
    """Move arrays that are spread over the CPU devices of this process to the first of them.

    Indexing a spread array, ``jax.tree.map(lambda x: x[0], states)``, runs a program with an all-reduce for each array. On a CPU,
    XLA has one thread per core for them all, and with several in flight each may wait for a thread that another holds: on two
    cores that hung within a minute.
    """

    def move(x: Any) -> Any:
        if not isinstance(x, jax.Array) or len(x.sharding.device_set) == 1:
            return x
        stays = x.nbytes >= LARGE or not x.is_fully_addressable or jax.local_devices()[0].platform != "cpu"
        return x if stays else jax.device_put(x, jax.local_devices()[0])

    return jax.tree.map(move, tree)


def request_devices_for(env_ids: Iterable[str]) -> None:
    """Call ``request_cpu_devices`` before environments are built, as a custom environment that makes arrays starts the backend.

    Environments on the host need only one device, so nothing is requested if all run there.
    """
    if not all(map(runs_on_host, env_ids)):
        request_cpu_devices()


class DeviceLayout(NamedTuple):
    """Layout of a run's seeds over devices."""

    devices: list[jax.Device]
    advice: str | None
    """One line of advice if other settings would be better."""
    devices_per_seed: int = 1
    """Number of devices that share the environments of each seed."""


def seed_devices(
    num_seeds: int, share: Callable[[int], int] = lambda spare: 1, each: int | None = None, *, of_all_processes: bool = False
) -> DeviceLayout:
    """Choose the devices to shard the seeds over.

    Args:
      share: maps the number of devices available to each shard of the seeds to the number that one seed's environments use.
      each: fixed number of devices per seed, instead of ``share``.
      of_all_processes: include the devices of all processes of the group. Each process must then own at least one used device.
    """
    request_cpu_devices()
    devices, cores = jax.devices() if of_all_processes else jax.local_devices(), usable_cores()
    if each is not None and each > len(devices):
        raise ValueError(f"devices_per_seed={each} exceeds the number of devices, {len(devices)}")

    def laid_out(num_devices: int) -> tuple[int, int]:
        if each is not None:
            return shard_count(num_seeds, num_devices // each), each
        shards = shard_count(num_seeds, num_devices)
        return shards, share(num_devices // shards)

    (shards, per_seed), advice = laid_out(len(devices)), None
    used, usable = shards * per_seed, min(num_seeds, len(devices))
    if of_all_processes and jax.process_count() > 1:
        _check_all_serve(devices[:used], num_seeds)
    elif each is None and is_default(devices) and len(devices) < cores and math.prod(laid_out(cores)) > used:
        current = f"{used} CPU device{'s' if used > 1 else ''}"
        owner = f"{num_seeds} seeds share" if num_seeds > 1 else "1 seed has"
        advice = (
            f"{owner} {current}, because JAX was in use before this run. To use {cores} cores, put this line first: "
            f'import jax; jax.config.update("jax_num_cpu_devices", {cores}) (or set JAX_NUM_CPU_DEVICES={cores})'
        )
    elif each is None and shards < usable and used < len(devices):
        advice = (
            f"{num_seeds} seeds divide over {shards} of {len(devices)} devices only: a multiple of {usable} would use {usable}"
        )
    return DeviceLayout(devices[:used], advice, per_seed)


def is_default(devices: list[jax.Device]) -> bool:
    """Return True if these are CPU devices whose number the user has not chosen."""
    return devices[0].platform == "cpu" and os.environ.get("JAX_NUM_CPU_DEVICES") != str(len(devices))


def _check_all_serve(devices: list[jax.Device], num_seeds: int) -> None:
    """Raise ValueError if the layout leaves a process without a device, as all processes run the program."""
    number = jax.process_count()
    if idle := sorted({*range(number)} - {device.process_index for device in devices}):
        raise ValueError(
            f"{num_seeds} seed{'s' * (num_seeds > 1)} can use {len(devices)} of the {jax.device_count()} devices of {number} "
            f"processes, but process {idle[0]} has none of them: use a number of seeds that is a multiple of {number}, or "
            "num_envs (and batch_size) that are multiples of the devices per seed, another devices_per_seed, or fewer processes"
        )


def cache_folder() -> Path | None:
    """Return the folder of compiled programs for this kind of processor, or None.

    It is in ``$JAXRL_CACHE_DIR`` (empty: no cache), by default in the user's cache folder.
    """
    configured = os.environ.get(CACHE_VARIABLE)
    if configured == "":
        return None
    base = configured or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "jaxrl", "xla")
    return at_home(base).absolute() / processor()


def processor() -> str:
    """Return a name for this kind of processor.

    Machines with different processors may share a home folder, and JAX's cache does not tell their programs apart.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    traits = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    text = "\n".join([platform.machine(), platform.processor(), *traits])
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def enable_compilation_cache() -> None:
    """Enable JAX's persistent compilation cache, unless the user has configured one or disabled it for jaxrl."""
    if setting("jax_compilation_cache_dir") or (folder := cache_folder()) is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a full or read-only home only costs compile time
    if not os.access(folder, os.W_OK):
        return
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX decides once, at the first compilation, whether it has a cache

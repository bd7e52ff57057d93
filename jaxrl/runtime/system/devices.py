"""Which devices a run uses, and where compiled programs are kept."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import jax

from jaxrl.envs import runs_on_host
from jaxrl.runtime.system.disk import at_home
from jaxrl.xla.private_jax import setting

CACHE_VARIABLE = "JAXRL_CACHE_DIR"


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_worker(num_workers: int) -> int:
    """With how many threads a worker's environments step, where they have threads: all together as many as cores but the
    learner's. What acts in a worker waits for them, and they for it."""
    return max(1, (usable_cores() - 1) // num_workers)


def shard_count(num_seeds: int, num_devices: int) -> int:
    """Over how many of the devices the seeds are sharded evenly: the largest divisor of ``num_seeds`` up to ``num_devices``."""
    return next(n for n in range(min(num_seeds, num_devices), 0, -1) if num_seeds % n == 0)


def request_cpu_devices() -> None:
    """Ask JAX for one CPU device per core, which it grants only before its backend starts.

    A device is one core's worth of work, and without this there is a single one. Your own setting is kept.
    """
    if setting("jax_num_cpu_devices") < 0 and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # a backend is live, and keeps the devices it has
            jax.config.update("jax_num_cpu_devices", usable_cores())


def request_devices_for(env_ids: Iterable[str]) -> None:
    """``request_cpu_devices`` before environments are built: one of the user's that makes arrays then starts the backend.

    Environments on the host keep one device, so nothing is asked for where all are.
    """
    if not all(map(runs_on_host, env_ids)):
        request_cpu_devices()


class DeviceLayout(NamedTuple):
    """How the seeds of a run are laid out over devices."""

    devices: list[jax.Device]
    advice: str | None
    """One line, if other settings would serve better."""
    devices_per_seed: int = 1
    """Over how many of them the environments of each seed are shared out."""


def seed_devices(
    num_seeds: int, share: Callable[[int], int] = lambda spare: 1, each: int | None = None, *, of_all_processes: bool = False
) -> DeviceLayout:
    """The devices to shard the seeds over.

    Args:
      share: how many devices to the environments of one seed, of so many that there are for each shard of the seeds.
      each: so many, in its place.
      of_all_processes: those of a group's other processes too, each of which must then have one that serves.
    """
    request_cpu_devices()
    devices, cores = jax.devices() if of_all_processes else jax.local_devices(), usable_cores()
    if each is not None and each > len(devices):
        raise ValueError(f"devices_per_seed={each} is more than there are devices, {len(devices)}")

    def laid_out(num_devices: int) -> tuple[int, int]:
        if each is not None:
            return shard_count(num_seeds, num_devices // each), each
        shards = shard_count(num_seeds, num_devices)
        return shards, share(num_devices // shards)

    (shards, per_seed), advice = laid_out(len(devices)), None
    used, able = shards * per_seed, min(num_seeds, len(devices))
    if of_all_processes and jax.process_count() > 1:
        _check_all_serve(devices[:used], num_seeds)
    elif each is None and devices[0].platform == "cpu" and len(devices) < cores and math.prod(laid_out(cores)) > used:
        now = f"{used} CPU device{'s' if used > 1 else ''}"
        whose = f"{num_seeds} seeds share" if num_seeds > 1 else "1 seed has"
        advice = (
            f"{whose} {now}, because JAX was in use before this run. To use {cores} cores, put this line first: "
            f'import jax; jax.config.update("jax_num_cpu_devices", {cores}) (or set JAX_NUM_CPU_DEVICES={cores})'
        )
    elif each is None and shards < able and used < len(devices):
        advice = f"{num_seeds} seeds divide over {shards} of {len(devices)} devices only: a multiple of {able} would use {able}"
    return DeviceLayout(devices[:used], advice, per_seed)


def _check_all_serve(devices: list[jax.Device], num_seeds: int) -> None:
    """Refuse a layout that leaves a process without a device: all of them run the program."""
    number = jax.process_count()
    if idle := sorted({*range(number)} - {device.process_index for device in devices}):
        raise ValueError(
            f"{num_seeds} seed{'s' * (num_seeds > 1)} can use {len(devices)} of the {jax.device_count()} devices of {number} "
            f"processes, and process {idle[0]} has none of those: use a number of seeds that is a multiple of {number}, or "
            "num_envs (and batch_size) that the devices of a seed divide, another devices_per_seed, or fewer processes"
        )


def cache_folder() -> Path | None:
    """Where compiled programs are kept, by kind of processor: in ``$JAXRL_CACHE_DIR`` (empty: nowhere), else the user's cache."""
    given = os.environ.get(CACHE_VARIABLE)
    if given == "":
        return None
    base = given or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "jaxrl", "xla")
    return at_home(base).absolute() / processor()


def processor() -> str:
    """A name for this kind of processor. JAX does not keep apart programs for different ones, which may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    traits = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    text = "\n".join([platform.machine(), platform.processor(), *traits])
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def enable_compilation_cache() -> None:
    """Turn JAX's persistent compilation cache on, unless the user has set it up already or switched ours off."""
    if setting("jax_compilation_cache_dir") or (folder := cache_folder()) is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home without room or rights costs compile time, and nothing else
    if not os.access(folder, os.W_OK):
        return
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX decides once, at the first compilation, whether it has a cache

"""Checks of devices and folders."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxrl.runtime.doctor.finding import MACHINE, Finding, pip
from jaxrl.runtime.doctor.packages import installed_version
from jaxrl.runtime.doctor.probe import Answer
from jaxrl.runtime.system.gpus import count_gpus, gpus_excluded

LITTLE = 2**30
"""Free disk space in bytes, below which there is a note."""


def check_devices(answer: Answer) -> Finding:
    """Check the devices available to a run, and that several seeds use all cores."""
    facts = answer.facts
    if "platform" not in facts:
        unset = next((f"unset {name}" for name in ("JAX_PLATFORMS", "XLA_FLAGS") if os.environ.get(name)), pip("check"))
        return Finding(MACHINE, "devices", "problem", f"JAX finds none ({answer.end})", "everything", unset)
    number, cores = facts["devices"], facts["cores"]
    if facts["platform"] != "cpu":
        return Finding(MACHINE, "devices", "ok", f"{number} × {facts['kind']}, {cores} CPU cores")
    shown = f"{number} CPU device{'s' * (number > 1)} on {cores} core{'s' * (cores > 1)}"
    if number >= cores:
        return Finding(MACHINE, "devices", "ok", f"{shown}: seeds are sharded over all cores")
    setting = "XLA_FLAGS" if "host_platform_device_count" in os.environ.get("XLA_FLAGS", "") else "JAX_NUM_CPU_DEVICES"
    found = f"{shown}, because of {setting}, so seeds do not use the other cores; faster: unset {setting}"
    return Finding(MACHINE, "devices", "note", found)


def check_gpu(answer: Answer, dev: Path = Path("/dev")) -> Finding:
    """Check that an NVIDIA GPU, if the system lists one in the folder ``dev``, is used."""
    present, facts = count_gpus(dev), answer.facts
    if not present:
        return Finding(MACHINE, "GPU", "ok", "no NVIDIA GPU here")
    shown = f"{present} NVIDIA GPU{'s' * (present > 1)}"
    if facts.get("platform", "cpu") != "cpu":
        return Finding(MACHINE, "GPU", "ok", f"{shown}, and JAX uses {facts['devices']}")
    if gpus_excluded():
        asked = os.environ["JAX_PLATFORMS"]
        return Finding(MACHINE, "GPU", "note", f"{shown}, not used because JAX_PLATFORMS={asked}; faster: unset JAX_PLATFORMS")
    plugins = [f"{name} {version}" for name in ("jax-cuda12-plugin", "jax-cuda13-plugin") if (version := installed_version(name))]
    why = f"JAX cannot use it with {' and '.join(plugins)}" if plugins else "JAX's CUDA plugin is not installed"
    install = pip("install", f"jax[cuda12]=={installed_version('jax')}")
    fix = f"nvidia-smi && {install}" if plugins else install
    return Finding(MACHINE, "GPU", "problem", f"{shown}, but {why}", "speed: everything runs on the CPU", fix)


def check_folders(cache: str | None = None) -> Iterator[Finding]:
    """Check the folders that runs write to, with that of compiled programs if it is known and there is one."""
    out = "jaxrl train without --out /a/folder, which writes to runs/ in the current folder"
    yield check_folder("current folder", os.getcwd, out, "cd /a/writable/folder")
    files = "everything that needs temporary files: saving plots, JAX on GPUs, worker processes"
    yield check_folder("temporary folder", tempfile.gettempdir, files, "export TMPDIR=/a/writable/folder")
    if cache is not None:
        fix = "export JAX_COMPILATION_CACHE_DIR=/a/writable/folder"
        yield check_folder("compilation cache", lambda: cache, "quick starts: every run compiles again", fix)


def check_folder(name: str, find: Callable[[], str], breaks: str, fix: str) -> Finding:
    """Check that files can be created in the folder that ``find`` returns, or in its nearest existing parent."""
    folder = "it"
    try:
        folder = find()
        place = next(place for place in (Path(folder), *Path(folder).parents) if os.path.lexists(place))
        with tempfile.NamedTemporaryFile(prefix=".jaxrl-doctor-", dir=place) as file:
            file.write(b"\0" * 4096)
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding(MACHINE, name, "problem", f"{folder} cannot be written to: {error.strerror or error}", breaks, fix)
    if free < LITTLE:
        found = f"{folder} has {free / 2**20:.0f} MiB free: long runs and replay buffers need more"
        return Finding(MACHINE, name, "note", found)
    return Finding(MACHINE, name, "ok", f"{folder}, {free / 2**30:.1f} GiB free")

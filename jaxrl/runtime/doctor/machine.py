"""Checks of devices, folders and disk space."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxrl.runtime.doctor.finding import MACHINE, Finding, pip_install, shortened
from jaxrl.runtime.doctor.packages import Requirement, installed_version
from jaxrl.runtime.doctor.process import Answer

LITTLE, TOO_LITTLE = 2**30, 100 * 2**20
"""Free disk space in bytes, below which there is a note, and a problem."""


# ---------------------------------------------------------------------------------------------------------------------- devices


def check_devices(answer: Answer) -> Finding:
    """Check the devices available to a run, and that several seeds use all cores."""
    facts = answer.facts
    if "platform" not in facts:
        found = f"JAX finds none ({shortened(answer.end or 'it gives no reason')})"
        unset = next((f"unset {name}" for name in ("JAX_PLATFORMS", "XLA_FLAGS") if os.environ.get(name)), None)
        return Finding(MACHINE, "devices", "problem", found, "everything", unset or pip_install("jax", again=True))
    number, cores = facts["devices"], facts["cores"]
    if facts["platform"] != "cpu":
        return Finding(MACHINE, "devices", "ok", f"{number} × {facts['kind']}, {cores} CPU cores")
    shown = f"{number} CPU device{'s' if number > 1 else ''} on {cores} core{'s' if cores > 1 else ''}"
    if number >= cores:
        return Finding(MACHINE, "devices", "ok", f"{shown}: seeds are sharded over all cores")
    setting = "XLA_FLAGS" if "host_platform_device_count" in os.environ.get("XLA_FLAGS", "") else "JAX_NUM_CPU_DEVICES"
    found = f"{shown}, because of {setting}, so seeds do not use the other cores; faster: unset {setting}"
    return Finding(MACHINE, "devices", "note", found)


def check_gpu(answer: Answer, requirements: Sequence[Requirement], dev: Path = Path("/dev")) -> Finding:
    """Check that an NVIDIA GPU, if present, is used.

    Args:
      dev: folder in which the system lists its devices.
    """
    present, facts = len(list(dev.glob("nvidia[0-9]*"))), answer.facts
    if not present:
        return Finding(MACHINE, "GPU", "ok", "no NVIDIA GPU here")
    shown = f"{present} NVIDIA GPU{'s' if present > 1 else ''}"
    if facts.get("platform", "cpu") != "cpu":
        return Finding(MACHINE, "GPU", "ok", f"{shown}, and JAX uses {facts['devices']}")
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked and not {"cuda", "gpu"} & set(asked.split(",")):
        return Finding(MACHINE, "GPU", "note", f"{shown}, not used because JAX_PLATFORMS={asked}; faster: unset JAX_PLATFORMS")
    cuda = next((found.parts for found in requirements if found.extra == "cuda" and found.parts), "cuda12")
    install = pip_install(f"jax[{cuda}]=={installed_version('jax')}")
    plugins = [f"{name} {version}" for name in ("jax-cuda12-plugin", "jax-cuda13-plugin") if (version := installed_version(name))]
    if not plugins:
        found, fix = f"{shown}, but JAX's CUDA plugin is not installed", install
    else:
        why = f" ({shortened(answer.end)})" if answer.end else ""
        found, fix = f"{shown}, but JAX cannot use it with {' and '.join(plugins)}{why}", f"nvidia-smi && {install}"
    return Finding(MACHINE, "GPU", "problem", found, "speed: everything runs on the CPU", fix)


# ---------------------------------------------------------------------------------------------------------------------- folders


def check_folders(answer: Answer | None) -> Iterator[Finding]:
    """Check the folders that runs write to, and their free space. The compilation cache is only known if JAX can be imported."""
    checked = [check_current_folder(), check_temporary_folder()]
    if answer is not None and "cache" in answer.facts:
        checked.append(check_cache(answer.facts["cache"]))
    yield from (finding for finding, _ in checked)
    yield from check_room([folder for _, folder in checked if folder is not None])


def why_not_writable(folder: Path) -> str | None:
    """Return why no file can be created in the folder, or in the nearest existing parent; None if it can."""
    place = nearest_existing(folder)
    if not os.path.isdir(place):
        return f"{place} is a file" if place != folder else "it is a file"
    try:
        handle, name = tempfile.mkstemp(prefix=".jaxrl-doctor-", dir=place)
        try:
            os.write(handle, b"\0" * 4096)
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        return "files cannot be created there" if error.errno == errno.ENOENT else str(error.strerror).lower()
    return None


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)


def safe_folder() -> str:
    """Return a writable folder for use in suggested commands."""
    for place in (os.path.expanduser("~"), "/tmp", "/var/tmp"):
        if os.path.isabs(place) and why_not_writable(Path(place)) is None:
            return place
    return "/a/folder/of/yours"


def check_current_folder() -> tuple[Finding, Path | None]:
    """Return ``(finding, the folder if it is writable)``. By default, runs are written to ``runs/`` in it."""
    breaks = "jaxrl train without --out /a/folder, which writes to runs/ in the current folder"
    try:
        here = Path.cwd()
    except OSError:
        return Finding(MACHINE, "current folder", "problem", "it was deleted", breaks, f"cd {shlex.quote(safe_folder())}"), None
    why = why_not_writable(here)
    if why is None:
        return Finding(MACHINE, "current folder", "ok", str(here)), here
    ours = (
        why == os.strerror(errno.EACCES).lower() and here.stat().st_uid == os.geteuid() != 0
    )  # permissions do not restrict root
    fix = f"chmod u+wx {shlex.quote(str(here))}" if ours else f"cd {shlex.quote(safe_folder())}"
    return Finding(MACHINE, "current folder", "problem", f"{here} cannot be written to: {why}", breaks, fix), None


def check_temporary_folder() -> tuple[Finding, Path | None]:
    """Return ``(finding, the folder if it is writable)``."""
    chosen = os.environ.get("TMPDIR")
    if chosen and (why := why_not_writable(Path(chosen)) or (None if os.path.isdir(chosen) else "there is no such folder")):
        found = f"TMPDIR={chosen} cannot be written to: {why}"
    else:
        try:
            folder = tempfile.gettempdir()
            return Finding(MACHINE, "temporary folder", "ok", folder), Path(folder)
        except OSError:
            found = "none of the usual folders can be written to"
    breaks = "everything that needs temporary files: saving plots, JAX on GPUs, worker processes"
    other = shlex.quote(f"{safe_folder()}/tmp")
    return Finding(MACHINE, "temporary folder", "problem", found, breaks, f"mkdir -p {other} && export TMPDIR={other}"), None


def check_cache(cache: str | None) -> tuple[Finding, Path | None]:
    """Return ``(finding, the folder if it is writable)`` for the folder of compiled programs; None if there is no cache."""
    name = "compilation cache"
    if cache is None:
        return Finding(MACHINE, name, "ok", "disabled by an empty JAXRL_CACHE_DIR: every run compiles again"), None
    why = why_not_writable(Path(cache))
    if why is None:
        return Finding(MACHINE, name, "ok", cache), Path(cache)
    variable = "JAX_COMPILATION_CACHE_DIR" if os.environ.get("JAX_COMPILATION_CACHE_DIR") else "JAXRL_CACHE_DIR"
    fix = f"export {variable}={shlex.quote(safe_folder() + '/jaxrl-cache')}"
    found = f"{cache} cannot be written to: {why}"
    return Finding(MACHINE, name, "problem", found, "quick starts: every run compiles again", fix), None


def check_room(folders: Sequence[Path]) -> Iterator[Finding]:
    """Check the free space on the disks that hold these folders."""
    free = {folder: shutil.disk_usage(nearest_existing(folder)).free for folder in folders}
    little = {folder: room for folder, room in free.items() if room < LITTLE}
    if free and not little:
        yield Finding(MACHINE, "free disk", "ok", f"{min(free.values()) / 2**30:.1f} GiB or more in these folders")
    for folder, room in little.items():
        found = f"{room / 2**20:.0f} MiB free in {folder}"
        if room >= TOO_LITTLE:
            yield Finding(MACHINE, "free disk", "note", f"{found}: long runs and replay buffers need more")
        else:
            fix = f"du -xh --max-depth=1 {shlex.quote(str(folder))} | sort -h"
            yield Finding(MACHINE, "free disk", "problem", found, "checkpoints and logs", fix)

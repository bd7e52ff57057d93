"""Start of a run in a group of processes: compare their arguments, and share a folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.run_folder import LOCK, GuestFolder, RunFolder, first_difference, plain
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.runtime.system.disk import savable
from jaxrl.types import Agent

SECONDS = 300.0
"""Time in which all processes must reach the start of a run; a dead process is found earlier."""
SIGHT = 10.0
"""Seconds until a file that one machine wrote to a network file system must be visible on another."""


def check_alike(agent: Agent, request: Mapping[str, Any]) -> None:
    """Check that all processes train the same agent in the same way. Else all raise a ValueError that names the process and the
    argument, or a TimeoutError if a process did not arrive."""
    group = current()
    if group.is_alone:
        return
    _compare(group.gather({"agent": plain(agent.spec), "run": plain(request)}, SECONDS))
    # Only now: JAX's backend waits for the backends of all processes, without an error if one is missing.
    if not agent.collects_on_host:
        request_cpu_devices()
    _compare(group.gather({"platform": jax.default_backend(), "local_devices": jax.local_device_count()}, SECONDS))


def _compare(said: Sequence[Mapping[str, Any]]) -> None:
    for number, each in enumerate(said):
        if difference := first_difference(each, said[0]):
            raise ValueError(
                f"process {number} differs from process 0: {difference} in process 0. Call run with the same arguments, and the "
                "same number of devices, in all processes"
            )


def open_folder(out: str | os.PathLike[str]) -> RunFolder:
    """Claim a run's folder in the first process, and open it in the others. All raise the errors of ``RunFolder``, or ValueError
    if one does not see the folder."""
    group, claimed = current(), list[RunFolder]()
    if group.is_alone:
        return RunFolder(out)

    def claim() -> list[Any]:
        claimed.append(RunFolder(out))
        return [claimed[0].config, claimed[0].id, os.stat(claimed[0].path / LOCK).st_ino]

    try:
        config, run, mark = group.of_first(claim)
        group.together(lambda: _check_seen(out, mark))
    except BaseException:
        for folder in claimed:
            folder.close()
        raise
    return claimed[0] if claimed else GuestFolder(out, config, run)


def _check_seen(out: str | os.PathLike[str], mark: int) -> None:
    late = time.monotonic() + SIGHT
    while True:
        with contextlib.suppress(OSError):
            if os.stat(savable(out, "out") / LOCK).st_ino == mark:
                return
        if time.monotonic() > late:
            raise ValueError(
                f"out={os.fspath(out)!r} is not the folder that process 0 made: name a folder on a file system that all machines "
                "share, by its absolute path"
            )
        time.sleep(0.1)

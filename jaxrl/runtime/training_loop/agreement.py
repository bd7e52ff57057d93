"""The start of a run that several processes make together: they compare what they were asked for, and share a folder."""

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
from jaxrl.types import Agent, HostEnv

SECONDS = 300.0
"""In which all processes must come to the start of a run; a dead one is found earlier."""
SIGHT = 10.0
"""Seconds that a file of one machine may take to be seen by another, on a network's file system."""


def check_alike(agent: Agent, request: Mapping[str, Any]) -> None:
    """Refuse, in all processes alike, to train what is not the same in all.

    Raises:
      ValueError: one of them was asked for something else; the message says which, and what.
      TimeoutError: one did not come.
    """
    group = current()
    if group.is_alone:
        return
    _compare(group.gather({"agent": plain(agent.spec), "run": plain(request)}, SECONDS))
    # Not before: JAX's backend waits for those of all processes, and says nothing of one that does not come.
    if not isinstance(agent.env, HostEnv):
        request_cpu_devices()
    _compare(group.gather({"platform": jax.default_backend(), "local_devices": jax.local_device_count()}, SECONDS))


def _compare(said: Sequence[Mapping[str, Any]]) -> None:
    for number, each in enumerate(said):
        if difference := first_difference(each, said[0]):
            raise ValueError(
                f"process {number} is to train something else than process 0: {difference} in process 0. Call run with the same "
                "arguments, and as many devices, in all processes"
            )


def open_folder(out: str | os.PathLike[str]) -> RunFolder:
    """A run's folder: claimed by the first process, and seen by the others.

    Raises:
      As ``RunFolder`` does, in all processes; ValueError: one of them does not see it.
    """
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
                f"out={os.fspath(out)!r} is not the folder that process 0 has made: name one on a file system that all machines "
                "share, by its whole path"
            )
        time.sleep(0.1)

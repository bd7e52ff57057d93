"""``RayHolder``: the actor that holds an object on Ray. Does not import jax."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.envs.subprocess.child import open_log
from jaxrl.runtime.remote.holder import Exceptional, Holder
from jaxrl.runtime.remote.ray.guard import start_guard
from jaxrl.runtime.remote.resources import WEIGH, check_memory, memory_of
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.remote.versions import full_versions


class RayHolder:
    """Object on Ray. Calls of the group "control" are executed beside those of the object."""

    def __init__(self, log: str | None) -> None:
        if log is not None and Path(log).parent.is_dir():  # the folder may not exist on this machine
            with open_log(Path(log)) as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        start_guard()
        self._holder = Holder()

    def versions(self) -> dict[str, str]:
        return full_versions()

    def start(self, job: Packed) -> Packed | Exceptional:
        return for_ray(self._holder.start(job))

    def call(self, method: str, arguments: Packed, *shared: Packed) -> Packed | Exceptional:
        return for_ray(self._holder.call(method, arguments, shared))

    def watch(self, limit: int) -> str:
        """Return once the process uses more than ``limit`` bytes, with a text that says so; 0: never."""
        while not limit or not (fault := check_memory(memory_of(os.getpid()), limit)):
            time.sleep(WEIGH)
        return fault


def for_ray(outcome: Any) -> Any:
    """Return a packed value whose buffers are arrays, which Ray moves without a copy; anything else as it is."""
    if not isinstance(outcome, Packed):
        return outcome
    return outcome._replace(buffers=[np.frombuffer(buffer, np.uint8) for buffer in outcome.buffers])

"""``RayHolder``: the actor that holds an object on Ray. Does not import jax."""

from __future__ import annotations

import os
import tempfile
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

FOLLOW = 1.0
"""Seconds between two looks at the output of an object on another machine."""

MOST = 2**18
"""Bytes of output that are sent at once."""


Wire = bytes | list[Any] | dict[str, Any]
"""A packed value, or an exception, as plain data."""


class RayHolder:
    """Object on Ray. Calls of the group "control" are executed beside those of the object."""

    def __init__(self, log: tuple[str, str] | None) -> None:
        """``log``: the owner's machine, as Ray names it, and the file there for the output; None: it goes to Ray's logs."""
        self._output = None if log is None else Output(*log)
        start_guard()
        self._holder = Holder()

    def versions(self) -> dict[str, str]:
        return full_versions()

    def start(self, job: Wire) -> Wire:
        return for_ray(self._holder.start(packed_value(job)))

    def call(self, request: list[Any], *shared: Wire) -> Wire:
        """Call a method. ``request`` is a list as each argument costs time: its name, and the packed arguments."""
        method, pickle, *buffers = request
        return for_ray(self._holder.call(method, Packed(pickle, buffers), [*map(packed_value, shared)]))

    def call_beside(self, method: str, arguments: Wire) -> Wire:
        return for_ray(self._holder.call(method, packed_value(arguments), ()))

    def output(self) -> bytes | None:
        """Return what was printed since the last call, after a while; None if it is in the log already."""
        return None if self._output is None else self._output.read()

    def watch(self, limit: int) -> str:
        """Return once the process uses more than ``limit`` bytes, with a text that says so; 0: never."""
        while not limit or not (fault := check_memory(memory_of(os.getpid()), limit)):
            time.sleep(WEIGH)
        return fault


class Output:
    """Output of this process and of those that it starts: in the log, or in a file from which the owner is sent it."""

    def __init__(self, node: str, path: str) -> None:
        import ray

        self._sent: int | None = None
        """Number of bytes that were sent; None if the log is on this machine."""
        if ray.get_runtime_context().get_node_id() == node:
            self._file = open_log(Path(path))
        else:
            self._sent, self._file = 0, tempfile.TemporaryFile()  # noqa: SIM115
        for descriptor in (1, 2):
            os.dup2(self._file.fileno(), descriptor)

    def read(self) -> bytes | None:
        """See ``RayHolder.output``."""
        if self._sent is None:
            return None
        time.sleep(FOLLOW)
        output = os.pread(self._file.fileno(), MOST, self._sent)
        self._sent += len(output)
        return output


def for_ray(outcome: Packed | Exceptional) -> Wire:
    """Return plain data, which Ray sends without a pickle. Buffers become arrays, which it moves without a copy."""
    if isinstance(outcome, Exceptional):
        return outcome._asdict()
    return as_list(outcome) if outcome.buffers else outcome.pickle


def as_list(packed: Packed) -> list[Any]:
    """Return a pickle and its buffers, as arrays."""
    return [packed.pickle, *(np.frombuffer(buffer, np.uint8) for buffer in packed.buffers)]


def from_ray(data: Wire) -> Packed | Exceptional:
    """Invert ``for_ray``."""
    if isinstance(data, bytes):
        return Packed(data, [])
    return Packed(data[0], data[1:]) if isinstance(data, list) else Exceptional(**data)


def packed_value(data: Wire) -> Packed:
    """Return what ``for_ray`` made of a packed value."""
    value = from_ray(data)
    assert isinstance(value, Packed)
    return value

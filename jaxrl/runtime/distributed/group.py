"""``ProcessGroup``: exchange of plain data, as opposed to arrays, between processes that train together."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl.types import PyTree
from jaxrl.xla.private_jax import Coordination, coordination

T = TypeVar("T")
SLICE_MS = 1_000
"""Maximum milliseconds of one query to the store. Python handles signals between queries."""
HEARING = 10.0
"""Seconds that others have to learn that the first process ends early."""
PARTING = 30.0
"""Seconds that a process has to write the end of a run."""
PATIENCE = 24 * 3600.0
"""Seconds to wait for others during a run. Dead processes are found much earlier, by JAX's heartbeat."""


FAILED = "jaxrl/failed/"
"""Key under which processes report why they end early."""


class ProcessFailed(ValueError):
    """Error: another process of the group failed. The message names it and says why."""


class ProcessGroup:
    """Processes of ``jax.distributed``. A single process is a group of one, which never waits.

    All processes call the same methods in the same order, from their main threads.
    """

    def __init__(self) -> None:
        self._store, self.process_id, self.num_processes = coordination() or Coordination(None, 0, 1)
        self._turn = 0

    @property
    def is_first(self) -> bool:
        """True in the process that writes, displays and decides."""
        return self.process_id == 0

    @property
    def is_alone(self) -> bool:
        return self.num_processes == 1

    def gather(self, data: Any, timeout: float = PATIENCE) -> list[Any]:
        """Gather plain JSON data from each process, in their order. Raise TimeoutError if one is silent for ``timeout`` s."""
        if self.is_alone:
            return [data]
        self._turn += 1
        late, here = time.monotonic() + timeout, f"jaxrl/{self._turn}"
        if not self.is_first:
            self._store.key_value_set(f"{here}/{self.process_id}", json.dumps(data))
            return json.loads(self._get(f"{here}/all", 0, late))
        said = [data, *(json.loads(self._get(f"{here}/{i}", i, late)) for i in range(1, self.num_processes))]
        self._store.key_value_set(f"{here}/all", json.dumps(said))
        self._store.key_value_delete(f"jaxrl/{self._turn - 1}/")  # all have read it, since they are here now
        return json.loads(json.dumps(said))

    def of_first(self, make: Callable[[], T]) -> T:
        """Call ``make`` in process 0 only, and return its result, plain JSON data, in all. If it fails there, all fail."""
        return self.together(make if self.is_first else lambda: None)[0]

    def together(self, make: Callable[[], T], timeout: float = PATIENCE) -> list[Any]:
        """Call ``make`` in all processes, and return the results, plain JSON data. If it fails in one process, that one raises
        its error, and the others raise ProcessFailed."""
        if self.is_alone:
            return [make()]
        error: Exception | None = None
        try:
            outcome: Any = {"value": make()}
        except Exception as failure:
            error, outcome = failure, {"error": " ".join(str(failure).split()) or type(failure).__name__}
        said = self.gather(outcome, timeout)
        if error is not None:
            raise error
        for number, each in enumerate(said):
            if "error" in each:
                raise ProcessFailed(f"process {number}: {each['error']}")
        return [each["value"] for each in said]

    def fail(self, why: str) -> None:
        """Report to the others, which may be waiting, why this process ends now; an empty text if another process caused it."""
        if self.is_alone:
            return
        with contextlib.suppress(Exception):
            self._store.key_value_set(f"{FAILED}{self.process_id}", " ".join(why.split()))
            late = time.monotonic() + HEARING
            while self.is_first and len(self._failures()) < self.num_processes and time.monotonic() < late:
                time.sleep(0.05)  # the store ends with this process, so wait until the others have read it

    def part(self) -> None:
        """Make the first process, which holds the store, end last. Call it before processes end without waiting for others."""
        if self.is_first:
            for i in range(1, self.num_processes):
                self._get(f"jaxrl/parted/{self._turn}/{i}", i, time.monotonic() + PARTING)
        else:
            self._store.key_value_set(f"jaxrl/parted/{self._turn}/{self.process_id}", "")

    def fetch(self, tree: PyTree) -> PyTree:
        """Return whole arrays on the host, including those with shards in other processes."""
        if any(map(_is_spread, jax.tree.leaves(tree))):
            tree = jax.tree.map(lambda x: x.addressable_data(0) if _is_spread(x) else x, _replicated(tree))
        return jax.device_get(tree)

    def _failures(self) -> list[tuple[int, str]]:
        said = self._store.key_value_dir_get(FAILED)
        return [(int(key.rpartition("/")[2]), why) for key, why in said]

    def _get(self, key: str, whose: int, late: float) -> str:
        while True:
            try:
                return self._store.blocking_key_value_get(key, SLICE_MS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            for number, why in filter(itemgetter(1), self._failures()):
                raise ProcessFailed(f"process {number} has ended: {why}")
            if time.monotonic() > late:
                raise TimeoutError(f"timed out waiting for process {whose}: check its output")


def _is_spread(x: Any) -> bool:
    return isinstance(x, jax.Array) and not x.is_fully_addressable


def _replicated(tree: PyTree) -> PyTree:
    """Replace sharded arrays by replicated ones, in one program for all."""
    leaves, structure = jax.tree.flatten(tree)
    spread = [x for x in leaves if _is_spread(x)]
    whole = iter(_gathering(NamedSharding(spread[0].sharding.mesh, PartitionSpec()))(spread))
    return structure.unflatten([next(whole) if _is_spread(x) else x for x in leaves])


@functools.cache
def _gathering(sharding: NamedSharding) -> Callable[..., Any]:
    return jax.jit(lambda tree: tree, out_shardings=sharding)


_current: ProcessGroup | None = None


def current() -> ProcessGroup:
    """Return the current group of this process."""
    global _current
    if _current is None or (_current.is_alone and jax.distributed.is_initialized()):
        _current = ProcessGroup()
    return _current

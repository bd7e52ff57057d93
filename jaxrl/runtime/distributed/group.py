"""``ProcessGroup``: what the processes that train together tell each other besides arrays."""

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
"""How long one question to the store may take: between two of them Python answers signals."""
HEARING = 10.0
"""Seconds for others to hear that the first process ends before its time."""
PARTING = 30.0
"""Seconds for a process to write the last of a run."""
PATIENCE = 24 * 3600.0
"""Seconds to wait for others in the middle of a run: one that is dead is found by JAX's heartbeat, long before."""


FAILED = "jaxrl/failed/"
"""Where processes say why they end before their time."""


class ProcessFailed(ValueError):
    """Another process of the group could not do its part; the message names it, and says why."""


class ProcessGroup:
    """The processes of ``jax.distributed``; one process alone is a group of itself, which waits for nobody.

    Every method is called by all, in the same order, from their main threads.
    """

    def __init__(self) -> None:
        self._store, self.process_id, self.num_processes = coordination() or Coordination(None, 0, 1)
        self._turn = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes, shows and decides."""
        return self.process_id == 0

    @property
    def is_alone(self) -> bool:
        return self.num_processes == 1

    def gather(self, data: Any, timeout: float = PATIENCE) -> list[Any]:
        """What each process says, by their numbers: plain JSON data.

        Raises:
          TimeoutError: one said nothing in ``timeout`` seconds.
        """
        if self.is_alone:
            return [data]
        self._turn += 1
        late, here = time.monotonic() + timeout, f"jaxrl/{self._turn}"
        if not self.is_first:
            self._store.key_value_set(f"{here}/{self.process_id}", json.dumps(data))
            return json.loads(self._get(f"{here}/all", 0, late))
        said = [data, *(json.loads(self._get(f"{here}/{i}", i, late)) for i in range(1, self.num_processes))]
        self._store.key_value_set(f"{here}/all", json.dumps(said))
        self._store.key_value_delete(f"jaxrl/{self._turn - 1}/")  # which all have read: they are here now
        return json.loads(json.dumps(said))

    def of_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives in process 0, which alone calls it: plain JSON data. If it fails there, all fail."""
        return self.together(make if self.is_first else lambda: None)[0]

    def together(self, make: Callable[[], T], timeout: float = PATIENCE) -> list[Any]:
        """Call it in all processes: plain JSON data from each. If it fails in one, it raises in all.

        Raises:
          ProcessFailed: it failed in another one.
        """
        if self.is_alone:
            return [make()]
        error: Exception | None = None
        try:
            given: Any = {"value": make()}
        except Exception as failure:
            error, given = failure, {"error": " ".join(str(failure).split()) or type(failure).__name__}
        said = self.gather(given, timeout)
        if error is not None:
            raise error
        for number, each in enumerate(said):
            if "error" in each:
                raise ProcessFailed(f"process {number}: {each['error']}")
        return [each["value"] for each in said]

    def fail(self, why: str) -> None:
        """Tell the others, which may wait for this process, why it ends now: nothing where it has heard of another's end."""
        if self.is_alone:
            return
        with contextlib.suppress(Exception):
            self._store.key_value_set(f"{FAILED}{self.process_id}", " ".join(why.split()))
            late = time.monotonic() + HEARING
            while self.is_first and len(self._failures()) < self.num_processes and time.monotonic() < late:
                time.sleep(0.05)  # its end is that of the store: the others are to hear of it, and say so

    def part(self) -> None:
        """Before processes end that do not wait for each other: the first, which the store is in, ends last."""
        if self.is_first:
            for i in range(1, self.num_processes):
                self._get(f"jaxrl/parted/{self._turn}/{i}", i, time.monotonic() + PARTING)
        else:
            self._store.key_value_set(f"jaxrl/parted/{self._turn}/{self.process_id}", "")

    def fetch(self, tree: PyTree) -> PyTree:
        """Arrays on the host, whole, also those of which other processes hold shards."""
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
                raise TimeoutError(f"process {whose} did not come so far in time: see what it says")


def _is_spread(x: Any) -> bool:
    return isinstance(x, jax.Array) and not x.is_fully_addressable


def _replicated(tree: PyTree) -> PyTree:
    """With whole copies of what is spread, in one program for all."""
    leaves, structure = jax.tree.flatten(tree)
    spread = [x for x in leaves if _is_spread(x)]
    meshes = {x.sharding.mesh for x in spread}
    whole = iter(_gathering(NamedSharding(meshes.pop(), PartitionSpec()))(spread))
    return structure.unflatten([next(whole) if _is_spread(x) else x for x in leaves])


@functools.cache
def _gathering(sharding: NamedSharding) -> Callable[..., Any]:
    return jax.jit(lambda tree: tree, out_shardings=sharding)


_current: ProcessGroup | None = None


def current() -> ProcessGroup:
    """The group of this process, as it is now."""
    global _current
    if _current is None or (_current.is_alone and jax.distributed.is_initialized()):
        _current = ProcessGroup()
    return _current

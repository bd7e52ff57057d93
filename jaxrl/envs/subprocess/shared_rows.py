"""Rows of environments in memory shared with the worker process that steps them. Does not import jax."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import tree

from jaxrl.envs.subprocess.child import Child
from jaxrl.envs.subprocess.shared_memory import SharedMemory, layout_of, received
from jaxrl.types import HostStep, PyTree


def example_of(action: np.ndarray, row: HostStep) -> PyTree | None:
    """Return ``(action, row)`` of zero environments, which describes the structure, shapes and dtypes for any number.

    None unless all leaves are arrays [num_envs, ...] without Python objects.
    """

    def fits(x: Any) -> bool:
        return isinstance(x, np.ndarray) and x.shape[:1] == action.shape[:1] and not x.dtype.hasobject

    pair = (action, row)
    return tree.map_structure(lambda x: x[:0].copy(), pair) if all(map(fits, tree.flatten(pair))) else None


class SharedRows:
    """Shared memory for one row of ``num_envs`` environments: their ``action`` and the resulting ``row``."""

    def __init__(self, example: PyTree, num_envs: int, connection: Connection | None = None) -> None:
        """Allocate memory for rows like ``example`` (see ``example_of``), or receive that which another process gives."""
        self._arguments = example, num_envs
        places = tree.map_structure(lambda x: np.broadcast_to(np.zeros((), x.dtype), (num_envs, *x.shape[1:])), example)
        layout = layout_of(tree.flatten(places))
        self._memory = SharedMemory(layout.num_bytes) if connection is None else received(connection, layout.num_bytes)
        self.action, self.row = tree.unflatten_as(places, self._memory.arrays(layout))

    def give(self, child: Child, method: str) -> None:
        """Share the memory with the worker: send ``method`` and the arguments for its ``SharedRows``, then the memory itself."""
        child.send((method, self._arguments))
        self._memory.give(child.connection, child.process.pid)
        self._memory.close()


def put(places: PyTree, values: Any) -> bool:
    """Copy arrays to ``places`` if structure, shapes and dtypes match. Return whether they do."""
    try:
        tree.assert_same_structure(places, values)
    except (TypeError, ValueError):
        return False
    pairs = list(zip(tree.flatten(places), tree.flatten(values), strict=True))
    if not all(isinstance(x, np.ndarray) and x.shape == place.shape and x.dtype == place.dtype for place, x in pairs):
        return False
    for place, x in pairs:
        place[...] = x
    return True

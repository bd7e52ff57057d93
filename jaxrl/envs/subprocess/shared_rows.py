"""Rows of environments that another process steps, in memory that it shares with this one. Imports no jax."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import tree

from jaxrl.envs.subprocess.child import Child
from jaxrl.envs.subprocess.shared_memory import SharedMemory, layout_of, received
from jaxrl.types import HostStep, PyTree


def example_of(action: np.ndarray, row: HostStep) -> PyTree | None:
    """``(action, row)`` of no environments: it says what those of any number look like.

    None where they are not, throughout, arrays of plain values [num_envs, ...].
    """
    both = (action, row)
    if not all(
        isinstance(x, np.ndarray) and x.shape[:1] == action.shape[:1] and not x.dtype.hasobject for x in tree.flatten(both)
    ):
        return None
    return tree.map_structure(lambda x: x[:0].copy(), both)


class SharedRows:
    """Memory for one row of ``num_envs`` environments: their ``action``, and what comes of it, ``row``."""

    def __init__(self, example: PyTree, num_envs: int, connection: Connection | None = None) -> None:
        """
        Args:
          example: what ``example_of`` gives.
          connection: over which the memory comes from the process that has allocated it (``give``); None: it is allocated here.

        Raises:
          OSError: there is not so much memory, or there are too many open files.
        """
        self._told = example, num_envs
        places = tree.map_structure(lambda x: np.broadcast_to(np.zeros((), x.dtype), (num_envs, *x.shape[1:])), example)
        layout = layout_of(tree.flatten(places))
        self._memory = SharedMemory(layout.num_bytes) if connection is None else received(connection, layout.num_bytes)
        self.action, self.row = tree.unflatten_as(places, self._memory.arrays(layout))

    def give(self, child: Child, method: str) -> None:
        """To the process that steps the environments: it is told ``method`` and what to call ``SharedRows`` with, and then given
        the memory."""
        child.send((method, self._told))
        self._memory.give(child.connection, child.process.pid)
        self._memory.close()


def put(places: PyTree, values: Any) -> bool:
    """Copy arrays to their places, if they have the structure, shapes and types of these; whether they have."""
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

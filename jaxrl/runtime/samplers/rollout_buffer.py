"""Memory of a rollout that is collected on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.types import PyTree

Index = tuple[Any, ...]
"""Index of rows and environments, for the leading axes of the arrays."""


class RolloutBuffer:
    """Arrays of one rollout, [*lead, T, B, ...], filled row by row.

    Unless memory is passed in, each rollout gets newly allocated arrays, and each element is written once. Reusing them would be
    unsafe, since their readers are not known here: on a CPU, JAX uses aligned NumPy arrays without a copy and may still compute
    with them after the call has returned; and the caller may keep the rollout.
    """

    def __init__(self, lead: tuple[int, ...], num_rows: int, num_lanes: int, arrays: Mapping[str, PyTree] | None = None) -> None:
        """Initialize the buffer; ``arrays`` is existing memory, by the names used in ``write``."""
        self._lead, self._shape = lead, (num_rows, num_lanes)
        self._arrays: dict[str, PyTree] = dict(arrays or {})

    def write(self, name: str, index: Index, tree: PyTree, more_rows: int = 0) -> None:
        """Write arrays [*lead, B, ...] of some lanes at ``index``.

        The first write of a name defines shapes and dtypes, and the number of rows: those of the rollout and ``more_rows``.
        """
        if name not in self._arrays:
            num_rows, num_lanes = self._shape
            shape, axes = (*self._lead, num_rows + more_rows, num_lanes), len(self._lead) + 1
            self._arrays[name] = jax.tree.map(lambda x: np.empty((*shape, *x.shape[axes:]), x.dtype), tree)

        for array, x in zip(jax.tree.leaves(self._arrays[name]), jax.tree.leaves(tree), strict=True):
            array[index] = x

    def blank(self, name: str, index: Index) -> None:
        """Fill existing memory with zeros."""

        def clear(array: np.ndarray) -> None:
            array[index] = 0

        jax.tree.map(clear, self._arrays[name])

    def read(self, name: str, index: Index = ()) -> Any:
        """Return views of the arrays of this name. Do not write to them afterwards."""
        return jax.tree.map(lambda x: x[index], self._arrays[name])

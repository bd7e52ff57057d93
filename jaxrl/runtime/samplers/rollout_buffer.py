"""The memory of a rollout that is collected on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.types import PyTree

Index = tuple[Any, ...]
"""Which rows of which environments: what indexes the first axes of the arrays."""


class RolloutBuffer:
    """Arrays of one rollout, [*lead, T, B, ...], into which rows are written as they come.

    Unless they are given, they are allocated for each rollout, and each place is written once. Arrays that serve a second time
    have to wait until nobody reads them any more, and that is not known here: JAX takes an aligned array of NumPy's on a CPU as
    it is, without a copy, and may compute with it after the call has returned; and a rollout is its caller's, who may keep it.
    """

    def __init__(self, lead: tuple[int, ...], num_rows: int, num_envs: int, arrays: Mapping[str, PyTree] | None = None) -> None:
        """``arrays``: memory that is there already, by the names of what is written."""
        self._lead, self._shape = lead, (num_rows, num_envs)
        self._arrays: dict[str, PyTree] = dict(arrays or {})

    def write(self, name: str, index: Index, tree: PyTree, more_rows: int = 0) -> None:
        """Put arrays [*lead, B, ...] of some environments where ``index`` says. The first of a name says what there will be.

        Args:
          more_rows: how many rows are kept beyond those of the rollout.
        """
        if name not in self._arrays:
            num_rows, num_envs = self._shape
            shape, axes = (*self._lead, num_rows + more_rows, num_envs), len(self._lead) + 1
            self._arrays[name] = jax.tree.map(lambda x: np.empty((*shape, *x.shape[axes:]), x.dtype), tree)

        for array, x in zip(jax.tree.leaves(self._arrays[name]), jax.tree.leaves(tree), strict=True):
            array[index] = x

    def blank(self, name: str, index: Index) -> None:
        """Zeros, in memory that is there."""

        def clear(array: np.ndarray) -> None:
            array[index] = 0

        jax.tree.map(clear, self._arrays[name])

    def read(self, name: str, index: Index = ()) -> Any:
        """What was written there: views, which nothing writes into any more."""
        return jax.tree.map(lambda x: x[index], self._arrays[name])

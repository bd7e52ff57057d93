"""``on_chunk``: what the user's function gets after each chunk, and what it may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.runtime.logs.records import Record
from jaxrl.settings.aliases import shortened
from jaxrl.types import PyTree


class Chunk(NamedTuple):
    """Argument of ``on_chunk``."""

    iteration: int
    rows: int
    """Rows per seed so far."""
    states: PyTree
    """States of all seeds. The next chunk donates them: copy what you keep."""
    record: Record
    """Log key -> a number, or [num_seeds]. Keys that you add are logged too."""


OnChunk = Callable[[Chunk], Any]
"""Function that returns None, or the states to continue with."""


def check_values(record: Record, num_seeds: int) -> None:
    """Raise TypeError unless the values of a record are numbers of the run or of each seed."""
    for name, value in record.items():
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" or array.shape not in ((), (num_seeds,)):
            raise TypeError(
                f"on_chunk set record[{name!r}] to {shortened(value)}: it must be a number, or an array with one for each seed "
                f"({num_seeds},)"
            )


def changed_seeds(before: PyTree, after: PyTree, fetch: Callable[[Any], Any]) -> np.ndarray:
    """Return bool[num_seeds]: seeds to which ``on_chunk`` gave other parameters or hyperparameters.

    Args:
      fetch: function that returns arrays on the host.
    """
    learnt = [jax.tree.leaves((states.learner.params, states.learner.hyperparams)) for states in (before, after)]
    differ = [np.asarray(x != y) for x, y in zip(*fetch(learnt), strict=True)]
    return np.logical_or.reduce([np.any(x, axis=tuple(range(1, np.ndim(x)))) for x in differ])

"""``RayActor``: a worker on Ray. It returns its rollouts, since it shares no memory with the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.runtime.actors.actor import Actor
from jaxrl.runtime.actors.messages import Done, Filled, WorkerJob
from jaxrl.runtime.system.devices import enable_compilation_cache


class RayActor:
    """An actor as a remote object: see ``jaxrl.remote``."""

    def __init__(self, job: WorkerJob) -> None:
        enable_compilation_cache()
        self.num_rows, self.due = 0, 0
        self.rollout: Filled | None = None
        self.actor = Actor(job, self.count_row, lambda number: number < self.due)

    def collect(self, number: int, key_data: np.ndarray, leaves: Sequence[np.ndarray], shapes: Filled | None) -> Done:
        """Collect a rollout, and return it as the ``part`` of the result. Its arrays are used again for the next.

        Args:
          shapes: shapes of the part; None if they are not yet known. For the other arguments see ``Actor.collect``.
        """
        if self.rollout is None and shapes is not None:
            self.allocate(shapes)
        return self.actor.collect(number, key_data, leaves, self.rollout, self.allocate)._replace(part=self.rollout)

    def allocate(self, like: Filled) -> Filled:
        """Allocate arrays for rollouts, like these or of these shapes."""
        self.rollout = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like)
        return self.rollout

    def report(self, due: int) -> int:
        """Return the number of rows that it has collected. Called during ``collect``, in another thread.

        Args:
          due: rollouts with lower numbers need not be finished.
        """
        self.due = due
        return self.num_rows

    def count_row(self) -> None:
        self.num_rows += 1

    def close(self) -> Any:
        self.actor.close()

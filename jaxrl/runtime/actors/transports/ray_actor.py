"""``RayActor``: a worker on Ray. It returns its rollouts, since it shares no memory with the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.envs.subprocess.shared_memory import layout_of, views
from jaxrl.runtime.actors.actor import Actor
from jaxrl.runtime.actors.messages import Done, Filled, WorkerJob, shapes_of
from jaxrl.runtime.system.devices import enable_compilation_cache


class Rows:
    """A worker's part of a rollout in one buffer, which Ray sends faster than many arrays."""

    def __init__(self, shapes: Filled, buffer: Any = None) -> None:
        """``buffer`` has the contents, u8[num_bytes]; None: it is allocated."""
        leaves, structure = jax.tree.flatten(shapes)
        layout = layout_of(leaves)
        self.shapes = shapes
        self.buffer: np.ndarray = np.zeros(layout.num_bytes, np.uint8) if buffer is None else buffer
        self.rollout: Filled = jax.tree.unflatten(structure, views(self.buffer, layout))


class RayActor:
    """An actor as a remote object: see ``jaxrl.remote``."""

    def __init__(self, job: WorkerJob) -> None:
        enable_compilation_cache()
        self.num_rows, self.due = 0, 0
        self.rows: Rows | None = None
        self.actor = Actor(job, self.count_row, lambda number: number < self.due)

    def collect(
        self, number: int, key_data: np.ndarray, leaves: Sequence[np.ndarray], shapes: Filled | None
    ) -> tuple[Done, np.ndarray, Filled | None]:
        """Collect a rollout. Return what is to be reported, and the contents of the part, whose buffer is used again.

        Args:
          shapes: shapes of the part; None if they are not yet known. Then they are the third result. For the other arguments see
            ``Actor.collect``.
        """
        if self.rows is None and shapes is not None:
            self.rows = Rows(shapes)
        known = None if self.rows is None else self.rows.rollout

        def place(mine: Filled) -> Filled:
            self.rows = Rows(shapes_of(mine))
            return self.rows.rollout

        done = self.actor.collect(number, key_data, leaves, known, place)
        assert self.rows is not None
        return done, self.rows.buffer, self.rows.shapes if known is None else None

    def report(self, due: int) -> int:
        """Return the number of rows that it has collected. Called during ``collect``, in another thread.

        Args:
          due: rollouts with lower numbers need not be finished.
        """
        self.due = due
        return self.num_rows

    def count_row(self) -> None:
        self.num_rows += 1

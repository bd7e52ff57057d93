"""Main function of an ``ActorPool``'s worker processes: act with parameters from shared memory, and write rollouts to it."""

from __future__ import annotations

import os
import traceback
from multiprocessing.connection import Connection
from typing import Any

import jax

from jaxrl.envs.host import error_text
from jaxrl.envs.subprocess.child import attend
from jaxrl.envs.subprocess.shared_memory import received
from jaxrl.runtime.actors import messages
from jaxrl.runtime.actors.actor import Actor
from jaxrl.runtime.actors.messages import POLICY, PROGRESS, ROLLOUT, Collect, Filled, RolloutSegment, WorkerJob
from jaxrl.runtime.system.devices import enable_compilation_cache


class Worker:
    """An actor, and the memory that it shares with the pool."""

    def __init__(self, connection: Connection, job: WorkerJob) -> None:
        self.connection, self.job = connection, job
        self.memory: dict[tuple[str, int], Any] = {}
        self.actor = Actor(job, self.count_row, lambda number: bool(number < self.memory[PROGRESS, 0][1][0]))

    def attach(self, segment: RolloutSegment) -> None:
        """Map the shared memory that follows on the connection."""
        arrays = received(self.connection, segment.layout.num_bytes).arrays(segment.layout)
        self.memory[segment.kind, segment.number] = jax.tree.unflatten(jax.tree.structure(segment.shapes), arrays)

    def collect(self, call: Collect) -> None:
        """Collect a rollout into shared memory, and report it."""

        def place(mine: Filled) -> Filled:
            self.connection.send(messages.Shapes(messages.shapes_of(mine)))
            while (ROLLOUT, call.rollout) not in self.memory:
                self.attach(self.connection.recv())
            return self.rows(call.rollout)

        rows = self.rows(call.rollout) if (ROLLOUT, call.rollout) in self.memory else None
        self.connection.send(self.actor.collect(call.number, call.key_data, self.memory[POLICY, call.policy], rows, place))

    def rows(self, number: int) -> Filled:
        """Return this worker's part of a rollout in shared memory."""
        return messages.part_of(self.memory[ROLLOUT, number], self.job)

    def count_row(self) -> None:
        """Report one more row."""
        self.memory[PROGRESS, 0][0][self.job.worker] += 1


def serve(connection: Connection) -> None:
    """Handle messages until ``CLOSE``."""
    worker: Any = None
    try:
        job = connection.recv()
        if job.pinned:
            os.sched_setaffinity(0, job.pinned)
        enable_compilation_cache()
        worker = Worker(connection, job)
        connection.send(messages.Ready())
        while (message := connection.recv()) != messages.CLOSE:
            (worker.attach if isinstance(message, RolloutSegment) else worker.collect)(message)
    except EOFError:
        pass  # the learner's process has ended
    except Exception as error:
        connection.send(messages.Failed(error_text(error), traceback.format_exc()))
    finally:
        if worker is not None:
            worker.actor.close()


if __name__ == "__main__":
    attend(serve)

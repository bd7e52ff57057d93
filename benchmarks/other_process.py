"""Helper processes of a benchmark, separate from jaxrl's processes under measurement. Imports no jax."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.protocol import WorkerError

DONE = "done"
SPAWN = multiprocessing.get_context("spawn")


class Other:
    """A process that runs ``target(connection, *args)`` and ends when it is sent None."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self.connection, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=target, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, message: Any) -> None:
        self.connection.send(message)

    def wait(self) -> None:
        """Wait until the process has answered.

        Raises:
          WorkerError: the process has ended.
        """
        try:
            self.connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerError(f"helper process {self.process.name} of this benchmark ended; check its output above") from error


@contextmanager
def started(target: Callable[..., None], *args: Any) -> Iterator[Other]:
    """Run a process for the duration of the context."""
    other = Other(target, *args)
    try:
        yield other
        other.tell(None)
        other.process.join()
    finally:
        other.process.kill()
        other.process.join()
        other.connection.close()


def step_raw(connection: Connection, name: str, seed: int, num_envs: int, num_threads: int, actions: np.ndarray) -> None:
    """Make the requested number of envpool's steps, as its documentation shows, cycling through actions [n, num_envs, ...]."""
    import envpool

    pool = envpool.make_gymnasium(name, num_envs=num_envs, num_threads=num_threads, seed=seed)
    pool.reset()
    connection.send(DONE)
    while rows := connection.recv():
        for t in range(rows):
            pool.step(actions[t % len(actions)])
        connection.send(DONE)

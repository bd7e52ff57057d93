"""Groups of worker processes on this machine that together form one JAX program. Standard library only."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from benchmarks.protocol import Worker, WorkerError

TIMEOUT = 300.0
"""Seconds in which a command must be answered. Compiling on a busy machine takes the longest."""


def free_port() -> int:
    """Return a port of the loopback device that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Group:
    """Workers that get each command at the same time. A context manager that ends all of them on exit.

    Each is started as ``COMMAND PROCESSES NUMBER PORT``. Several workers find each other at the port, on loopback.
    """

    def __init__(
        self, command: Sequence[str], num_processes: int, environment: Mapping[str, str], timeout: float = TIMEOUT
    ) -> None:
        self._timeout, port = timeout, str(free_port())
        self._late = False
        self._workers: list[Worker] = []
        try:
            for number in range(num_processes):
                self._workers.append(Worker([*command, str(num_processes), str(number), port], environment))
        except BaseException:
            self.close()
            raise

    def ask(self, op: str, **arguments: Any) -> list[dict[str, Any]]:
        """Send a command to all workers and return their answers.

        Raises:
          WorkerError: A worker died or did not answer in time. All are killed then, since the others would wait for it forever.
        """
        timer = threading.Timer(self._timeout, self._give_up)
        timer.start()
        with ThreadPoolExecutor(len(self._workers)) as pool:
            try:
                asked = [pool.submit(worker.ask, op, **arguments) for worker in self._workers]
                done, _ = wait(asked, return_when=FIRST_EXCEPTION)
                failed = [error for future in done if (error := future.exception()) is not None]
                if failed:
                    late = f"no answer to {op!r} within {self._timeout:g} s: " if self._late else ""
                    raise WorkerError(f"{late}{failed[0]}") from failed[0]
                return [future.result() for future in asked]
            except BaseException:
                self._kill()  # before the pool closes: it waits for its threads, and they wait for the workers
                raise
            finally:
                timer.cancel()

    def _give_up(self) -> None:
        self._late = True
        self._kill()

    def _kill(self) -> None:
        for worker in self._workers:
            worker.kill()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. All are killed before any is waited for, so that none sees another one end."""
        self._kill()
        for worker in self._workers:
            worker.close()

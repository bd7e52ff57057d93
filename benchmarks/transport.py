"""Transport of a rollout from another process: through shared memory, as in an ``ActorPool``, and pickled, through a queue."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.other_process import DONE, SPAWN, started
from jaxrl.envs.subprocess.shared_memory import SharedMemory, SharedMemoryLayout, layout_of, received

PAGE = 4096
"""Bytes."""
WRITE, SHARE, PUT = "write", "share", "put"
"""Commands for the other process: write new values into all arrays, report that shared memory is ready, fill the queue."""

Section = Callable[[], float]
"""Runs a timed section once and returns its seconds."""


def pong_rollout(num_envs: int, num_rows: int) -> SharedMemoryLayout:
    """Return the layout of the arrays: inputs (with one row more), actions, and the results of the steps."""
    seen, rows = (1, num_rows + 1, num_envs), (1, num_rows, num_envs)
    arrays = [((*seen, 4, 84, 84), np.uint8), (seen, np.int32), (seen, np.float32), (seen, np.bool_)]
    arrays += [(rows, np.int32), (rows, np.float32), (rows, np.bool_), (rows, np.bool_), (rows, np.bool_)]
    return layout_of([np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in arrays])


def hand_over(connection: Connection, layout: SharedMemoryLayout, queue: Any) -> None:
    """Main function of the other process. It has the arrays twice: in shared and in private memory."""
    shared = received(connection, layout.num_bytes).arrays(layout)
    private = [np.empty_like(x) for x in shared]
    while request := connection.recv():
        command, number = request
        if command == WRITE:
            for array in (*shared, *private):
                array[...] = number
        if command == PUT:
            queue.put(private)
        else:
            connection.send(DONE)


@contextlib.contextmanager
def handed(layout: SharedMemoryLayout, rollouts: int) -> Iterator[dict[str, Section]]:
    """Yield a timed section for each transport: mean seconds from the request for a rollout until a byte of each page was read.

    Before each transfer the other process writes all arrays. That is not timed, since workers write rows as they collect them.
    """
    queue: Any = SPAWN.Queue()
    memory, numbers = SharedMemory(layout.num_bytes), itertools.cycle(range(1, 100))
    with contextlib.closing(memory), started(hand_over, layout, queue) as other:
        assert other.process.pid is not None
        memory.give(other.connection, other.process.pid)

        def share(number: int) -> list[np.ndarray]:
            other.tell((SHARE, number))
            other.wait()
            return memory.arrays(layout, lambda: None)

        def put(number: int) -> list[np.ndarray]:
            other.tell((PUT, number))
            arrays: list[np.ndarray] = queue.get(timeout=600)
            return arrays

        def section(take: Callable[[int], list[np.ndarray]]) -> float:
            seconds = 0.0
            for number in itertools.islice(numbers, rollouts):
                other.tell((WRITE, number))
                other.wait()
                start = time.perf_counter()
                arrays = take(number)
                touch(arrays)
                seconds += time.perf_counter() - start
                assert all(x.flat[-1] == x.dtype.type(number) for x in arrays)
            return seconds / rollouts

        yield {"queue": lambda: section(put), "shared memory": lambda: section(share)}


def touch(arrays: list[np.ndarray]) -> int:
    """Read one byte of each page and return the sum."""
    return sum(int(x.reshape(-1).view(np.uint8)[::PAGE].sum(dtype=np.int64)) for x in arrays)

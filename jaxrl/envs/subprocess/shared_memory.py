"""Shared memory between processes, and arrays in it. Does not import jax.

The memory has no name in a file system. It is freed when the last process that holds it ends, even by a kill. The size of a
mount such as /dev/shm does not limit it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import numpy as np

from jaxrl.envs.subprocess.child import limit_of_files

ALIGNMENT = 64
"""Bytes. XLA uses an array that starts at a multiple of this without a copy."""


class ArrayPlace(NamedTuple):
    """Place of an array in a block of memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


class SharedMemoryLayout(NamedTuple):
    """Places of the leaves of a tree in a block of memory."""

    places: tuple[ArrayPlace, ...]
    num_bytes: int


def layout_of(leaves: Sequence[Any]) -> SharedMemoryLayout:
    """Lay out leaves one after the other. Leaves are arrays, or anything with ``shape`` and ``dtype``."""
    places, offset = [], 0
    for leaf in leaves:
        place = ArrayPlace(offset, tuple(leaf.shape), np.dtype(leaf.dtype))
        places.append(place)
        size = int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return SharedMemoryLayout(tuple(places), max(offset, ALIGNMENT))


def views(buffer: Any, layout: SharedMemoryLayout) -> list[np.ndarray]:
    """Return the arrays in a buffer."""

    def view(place: ArrayPlace) -> np.ndarray:
        if not (count := int(np.prod(place.shape, dtype=np.int64))):
            return np.empty(place.shape, place.dtype)
        return np.frombuffer(buffer, place.dtype, count, place.offset).reshape(place.shape)

    return [view(place) for place in layout.places]


class SharedMemory:
    """Block of memory that can be sent to other processes."""

    def __init__(
        self, num_bytes: int, handle: int | None = None, hint: str = "use fewer environments, or shorter rollouts"
    ) -> None:
        """Allocate memory, or map the block of another process from its ``handle``, which this object then closes.

        ``hint`` ends the error if there is too little memory.
        """
        with _explaining(num_bytes, hint):
            self.handle = os.memfd_create("jaxrl") if handle is None else handle
            try:
                if handle is None:
                    os.ftruncate(self.handle, num_bytes)
                    os.posix_fallocate(self.handle, 0, num_bytes)  # else a write without free memory kills the process (SIGBUS)
                self.map = mmap.mmap(self.handle, num_bytes)
            except BaseException:
                self.close()
                raise

    def arrays(self, layout: SharedMemoryLayout, when_done: Callable[[], object] | None = None) -> list[np.ndarray]:
        """Return the arrays in it. ``when_done`` is called once no reference to any of them, or to a part of one, is left."""
        lease: Any = (ctypes.c_char * len(self.map)).from_buffer(self.map)
        if when_done is not None:
            weakref.finalize(lease, when_done).atexit = False

        return views(lease, layout)

    def give(self, connection: Connection, pid: int) -> None:
        """Send it to the process at the other end of a connection, which calls ``received``."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next receive reports a lost connection
            send_handle(connection, self.handle, pid)

    def close(self) -> None:
        """Close the handle. Arrays stay valid, but the memory can no longer be sent to other processes."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def received(connection: Connection, num_bytes: int) -> SharedMemory:
    """Receive the memory that ``SharedMemory.give`` has sent."""
    memory = SharedMemory(num_bytes, recv_handle(connection))
    memory.close()  # the map is enough
    return memory


@contextlib.contextmanager
def _explaining(num_bytes: int, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OSError(error.errno, f"too many open files to share memory with workers: {limit_of_files()}") from error
        problem = f"{num_bytes / 2**20:.1f} MiB of memory to share with workers could not be allocated ({error.strerror})"
        raise OSError(error.errno, f"{problem}: {hint}") from error

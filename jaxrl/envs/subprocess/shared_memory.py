"""Memory that processes share, and arrays in it. Imports no jax.

It has no name in any file system: nothing is left of it when the last process that holds it has ended, however that comes, and no
mount's size limits it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import numpy as np

from jaxrl.envs.subprocess.child import limit_of_files

ALIGNMENT = 64
"""Bytes: XLA takes an array that begins at a multiple of this as it is."""


class ArrayPlace(NamedTuple):
    """Where an array lies in a block of memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


class SharedMemoryLayout(NamedTuple):
    """Where the leaves of a tree lie in a block."""

    places: tuple[ArrayPlace, ...]
    num_bytes: int


def layout_of(leaves: Sequence[Any]) -> SharedMemoryLayout:
    """One after the other; leaves are arrays, or anything with ``shape`` and ``dtype``."""
    places, offset = [], 0
    for leaf in leaves:
        place = ArrayPlace(offset, tuple(leaf.shape), np.dtype(leaf.dtype))
        places.append(place)
        size = int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return SharedMemoryLayout(tuple(places), max(offset, ALIGNMENT))


class SharedMemory:
    """A block of memory that other processes can be given."""

    def __init__(self, num_bytes: int, handle: int | None = None) -> None:
        """``handle``: of a block of another process's; it is this one's then to close.

        Raises:
          OSError: there is not so much memory, or there are too many open files.
        """
        self.handle = handle if handle is not None else _allocate(num_bytes)
        try:
            with _explaining(num_bytes):
                self.map = mmap.mmap(self.handle, num_bytes)
        except BaseException:
            self.close()
            raise

    def arrays(self, layout: SharedMemoryLayout, when_done: Callable[[], object] | None = None) -> list[np.ndarray]:
        """The arrays in it; ``when_done`` is called when nobody holds any of them, or a part of one, any more."""
        lease = (ctypes.c_char * len(self.map)).from_buffer(self.map)
        if when_done is not None:
            weakref.finalize(lease, when_done).atexit = False
        return [_view(lease, place) for place in layout.places]

    def give(self, connection: Connection, pid: int) -> None:
        """To the process at the other end of a connection, which takes it by ``received``. Whether that is there still, what it
        says next tells."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_handle(connection, self.handle, pid)

    def close(self) -> None:
        """Arrays in it stay what they are; another process can no longer be given it."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def received(connection: Connection, num_bytes: int) -> SharedMemory:
    """What ``SharedMemory.give`` has sent."""
    memory = SharedMemory(num_bytes, recv_handle(connection))
    memory.close()  # the map is enough
    return memory


def _view(lease: Any, place: ArrayPlace) -> np.ndarray:
    count = int(np.prod(place.shape, dtype=np.int64))
    if not count:
        return np.empty(place.shape, place.dtype)
    return np.frombuffer(lease, place.dtype, count, place.offset).reshape(place.shape)


def _allocate(num_bytes: int) -> int:
    with _explaining(num_bytes):
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("jaxrl")
        else:
            with tempfile.TemporaryFile() as file:
                handle = os.dup(file.fileno())
        try:
            os.ftruncate(handle, num_bytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, num_bytes)  # or the first write beyond what there is would end the process
        except BaseException:
            os.close(handle)
            raise
    return handle


@contextlib.contextmanager
def _explaining(num_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OSError(error.errno, f"too many open files to share memory with workers: {limit_of_files()}") from error
        what = f"{num_bytes / 2**20:.1f} MiB of memory to share with workers cannot be had ({error.strerror})"
        raise OSError(error.errno, f"{what}: use fewer environments, or shorter rollouts") from error

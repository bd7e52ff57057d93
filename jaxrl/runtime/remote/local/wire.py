"""Messages between an owner and the worker that holds its object, over one socket. Does not import jax.

Small arrays travel in the message, larger ones in blocks of shared memory, whose file descriptors come with it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jaxrl.envs.subprocess.inbox import CHUNK, LONG_SIZE, SIZE, Inbox
from jaxrl.envs.subprocess.shared_memory import ALIGNMENT, SharedMemory
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.system.memory import available_on_host, show_bytes

LARGE = 2**18
"""Bytes of a value's buffers from which they go through shared memory."""

KEPT = 4
"""Number of unused blocks that are kept for the next values: the system clears new memory, which takes as long as a copy."""

CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Lent(NamedTuple):
    """Buffers in a block of shared memory, which belongs to the sender. Its file descriptor comes with the message."""

    block: int
    """Number of the block, which the receiver returns once it no longer reads it."""
    num_bytes: int
    spans: tuple[tuple[int, int], ...]
    """Start and end of each buffer."""


class Parcel(NamedTuple):
    """A value on its way."""

    pickle: bytes
    buffers: tuple[bytes, ...] | Lent


class Hello(NamedTuple):
    """First message of a worker."""

    versions: dict[str, str]


class Start(NamedTuple):
    """Request to make the object, from a function and its arguments."""

    parcel: Parcel


class Call(NamedTuple):
    """Request to call a method. The parcel has its arguments."""

    method: str
    references: tuple[int, ...]
    parcel: Parcel


class Answer(NamedTuple):
    """Result of the oldest request that is not answered."""

    parcel: Parcel


class Raised(NamedTuple):
    """Exception of the oldest request that is not answered."""

    type_name: str
    message: str
    traceback: str


class Shared(NamedTuple):
    """Value that calls refer to by its number."""

    number: int
    parcel: Parcel


class Forget(NamedTuple):
    """Numbers of values to which no call refers any more."""

    numbers: tuple[int, ...]


class Returned(NamedTuple):
    """Numbers of the receiver's blocks that the sender no longer reads."""

    blocks: tuple[int, ...]


class End(NamedTuple):
    """Request to end."""


def frame(message: Any) -> bytes:
    """Return a message as ``Inbox`` reads it."""
    data = pickle.dumps(message, 5)
    header = SIZE.pack(len(data)) if len(data) < 2**31 else SIZE.pack(-1) + LONG_SIZE.pack(len(data))
    return header + data


def send_some(sender: socket.socket, data: Any, handles: Sequence[int], flags: int = 0) -> int:
    """Send the beginning of ``data``, with file descriptors. Return the number of bytes sent."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", handles))] if handles else []
    return sender.sendmsg([data], ancillary, flags)


class Mailbox(Inbox):
    """Reader of messages and of the file descriptors that come with them."""

    def __init__(self, receiver: socket.socket, flags: int = 0) -> None:
        """``flags`` are those of the system's recvmsg. With MSG_DONTWAIT, ``read`` raises BlockingIOError instead of waiting."""
        super().__init__(receiver)
        self._receiver, self._flags, self._handles = receiver, flags | CLOSE_ON_EXEC, deque[int]()

    def _receive(self) -> bytes:
        data, handles, _, _ = socket.recv_fds(self._receiver, CHUNK, 8, self._flags)
        self._handles.extend(handles)
        return data

    def open(self, parcel: Parcel, when_done: Callable[[int], object] = lambda block: None) -> Packed:
        """Return the contents of a parcel. Call this once for each, in the order of arrival.

        ``when_done`` is called with the number of a lent block once nothing refers to its memory.
        """
        if not isinstance(lent := parcel.buffers, Lent):
            return Packed(parcel.pickle, lent)
        handle = self._handles.popleft()
        try:
            memory = mmap.mmap(handle, lent.num_bytes, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), mmap.PROT_READ)
        finally:
            os.close(handle)
        weakref.finalize(memory, when_done, lent.block).atexit = False
        view = memoryview(memory)
        return Packed(parcel.pickle, [view[start:end] for start, end in lent.spans])

    def close(self) -> None:
        """Close file descriptors that were received and not used."""
        while self._handles:
            os.close(self._handles.popleft())


class Lender:
    """Blocks of shared memory that this process fills for one other, which returns them."""

    def __init__(self) -> None:
        self._lock, self._blocks, self._next = threading.Lock(), dict[int, SharedMemory](), 0
        self._unused: list[int] = []

    def parcel(self, packed: Packed) -> tuple[Parcel, list[int]]:
        """Return a value as a parcel, and the file descriptors to send with it.

        Raises:
          MemoryError: there is too little memory.
        """
        if packed.num_bytes < LARGE:
            return Parcel(packed.pickle, tuple(map(bytes, packed.buffers))), []
        spans, end = [], 0
        for buffer in packed.buffers:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + len(buffer)
            spans.append((start, end))
        with self._lock:
            number, memory = self._take(end)
        for (start, stop), buffer in zip(spans, packed.buffers, strict=True):
            memory.map[start:stop] = buffer
        return Parcel(packed.pickle, Lent(number, len(memory.map), tuple(spans))), [memory.handle]

    def _take(self, num_bytes: int) -> tuple[int, SharedMemory]:
        fits = [n for n in self._unused if num_bytes <= len(self._blocks[n].map) <= 4 * num_bytes]
        if fits:
            number = min(fits, key=lambda n: len(self._blocks[n].map))
            self._unused.remove(number)
            return number, self._blocks[number]
        available = available_on_host()
        if available is not None and num_bytes > available:
            raise MemoryError(f"{show_bytes(num_bytes)} of shared memory are needed, and {show_bytes(available)} are available")
        self._next += 1
        self._blocks[self._next] = memory = SharedMemory(num_bytes, hint="send less at once, or keep fewer results")
        return self._next, memory

    def take_back(self, blocks: Iterable[int]) -> None:
        """Use these blocks again, or free them."""
        with self._lock:
            self._unused += [number for number in blocks if number in self._blocks]
            while len(self._unused) > KEPT:
                self._blocks.pop(self._unused.pop(0)).close()

    def close(self) -> None:
        """Close the blocks. The other process keeps those that it still reads."""
        with self._lock, contextlib.suppress(KeyError):
            while True:
                self._blocks.popitem()[1].close()

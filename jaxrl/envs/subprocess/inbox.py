"""Messages from another process, received without waiting for incomplete ones. Does not import jax."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any

CHUNK = 2**16
"""Bytes per read."""

SIZE, LONG_SIZE = struct.Struct("!i"), struct.Struct("!Q")
"""Header of a message from ``Connection.send``: its size, or -1 and the size if that is 2 GiB or more."""

PICKLE = 0x80
"""First byte of each pickle that ``Connection.send`` sends."""


class Garbled(Exception):
    """Error: received bytes that are not a message. Later messages can no longer be separated from them."""

    def __init__(self) -> None:
        super().__init__("wrote something that is not a message into the pipe to this process")


class Inbox:
    """Reader of a connection whose other end calls ``send``. This end must not call ``recv``."""

    def __init__(self, connection: Connection | socket.socket) -> None:
        self._connection, self._begun = connection, bytearray()

    def _receive(self) -> bytes:
        return os.read(self._connection.fileno(), CHUNK)

    def read(self) -> list[Any]:
        """Return the messages that are now complete. Blocks only if no bytes have arrived.

        Raises:
          EOFError, OSError: the connection has ended.
          Garbled: the bytes are not a message.
        """
        if not (data := self._receive()):
            raise EOFError
        self._begun += data
        messages = []
        while (message := self._next()) is not None:
            try:
                messages.append(pickle.loads(message))
            except Exception as error:  # garbled bytes may raise any exception
                raise Garbled from error
        return messages

    def _next(self) -> bytes | None:
        """Remove and return the first message; None while it is incomplete."""
        buffer, start = self._begun, SIZE.size
        if len(buffer) < start:
            return None
        (size,) = SIZE.unpack_from(buffer)
        if size == -1:
            start += LONG_SIZE.size
            if len(buffer) < start:
                return None
            (size,) = LONG_SIZE.unpack_from(buffer, SIZE.size)
        if size < 2 or (len(buffer) > start and buffer[start] != PICKLE):
            raise Garbled
        if len(buffer) < start + size:
            return None
        message = bytes(buffer[start : start + size])
        del buffer[: start + size]
        return message

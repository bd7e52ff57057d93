"""Messages of another process, taken in without waiting for what has not come yet. Imports no jax."""

from __future__ import annotations

import os
import pickle
import struct
from multiprocessing.connection import Connection
from typing import Any

CHUNK = 2**16
"""Bytes that are read at once."""

SIZE, LONG_SIZE = struct.Struct("!i"), struct.Struct("!Q")
"""How ``Connection.send`` begins a message: with its size, or with -1 and the size where that is 2 GiB or more."""

PICKLE = 0x80
"""The byte with which every pickle begins that it sends."""


class Garbled(Exception):
    """Bytes came that are not a message: whatever wrote them, what follows cannot be told apart any more."""

    def __init__(self) -> None:
        super().__init__("wrote something that is not a message into the pipe to this process")


class Inbox:
    """What comes over a connection whose other end calls ``send``; this end does not call ``recv``."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._begun = connection, bytearray()

    def read(self) -> list[Any]:
        """The messages that are whole with what has come; waits only where nothing has.

        Raises:
          EOFError, OSError: the connection has ended.
          Garbled: this is not a message.
        """
        data = os.read(self._connection.fileno(), CHUNK)
        if not data:
            raise EOFError
        self._begun += data
        messages = []
        while (message := self._next()) is not None:
            try:
                messages.append(pickle.loads(message))
            except Exception as error:  # of any kind, by what the bytes happen to mean
                raise Garbled from error
        return messages

    def _next(self) -> bytes | None:
        """The first message, once it is whole."""
        begun, start = self._begun, SIZE.size
        if len(begun) < start:
            return None
        (size,) = SIZE.unpack_from(begun)
        if size == -1:
            start += LONG_SIZE.size
            if len(begun) < start:
                return None
            (size,) = LONG_SIZE.unpack_from(begun, SIZE.size)
        if size < 2 or (len(begun) > start and begun[start] != PICKLE):
            raise Garbled
        if len(begun) < start + size:
            return None
        message = bytes(begun[start : start + size])
        del begun[: start + size]
        return message

"""Arrays of a ``.npz`` file that may be anyone's, read a few rows at a time.

Only the arrays that are asked for are opened. A header is held against the size of its array before memory is taken, and nothing
is unpickled. No message of zipfile's or NumPy's is passed on: NumPy's advise to allow pickles, which run code.
"""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from jaxrl.runtime.system.disk import open_regular

HEADER_BYTES = 10_000
"""The longest header that is read; that of an array of numbers has about a hundred bytes."""
PIECE_BYTES = 2**20
"""Rows that are not wanted are read in pieces of this size, so that they count in the checksum."""


class Unreadable(ValueError):
    """A file is damaged, or was never what it should be."""


class Column:
    """One array of a file, read from its first row on."""

    def __init__(self, name: str, stream: IO[bytes], size: int) -> None:
        """
        Args:
          name: for errors.
          size: bytes of the header and all rows.
        """
        self._name, self._stream = name, stream
        with _explained(name):
            self.shape, self.dtype, fortran_order, offset = _header(stream)
        claimed = f"{self.dtype}{list(self.shape)}"
        if self.dtype.hasobject:
            raise Unreadable(f"{name} holds Python objects, and only numbers are read: objects could run code")
        if fortran_order and len(self.shape) > 1:
            raise Unreadable(f"{name} is in Fortran's order: write it with np.ascontiguousarray")
        self._row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        if not self.shape or min(self.shape) < 0 or offset + self.shape[0] * self._row_bytes != size:
            raise Unreadable(f"{name} says it is {claimed} and has {max(size - offset, 0):,} bytes: the file is damaged")

    def skip(self, count: int) -> None:
        """Leave the next rows out."""
        left = count * self._row_bytes
        while left:
            left -= len(self._exactly(min(left, PIECE_BYTES)))

    def read(self, count: int) -> np.ndarray:
        """The next rows, [count, ...]."""
        raw = np.frombuffer(self._exactly(count * self._row_bytes), np.uint8)
        # A byte other than 0 and 1 would be a truth value that is neither.
        rows = raw != 0 if self.dtype == np.bool_ else raw.view(self.dtype)
        return rows.reshape((count, *self.shape[1:]))

    def _exactly(self, size: int) -> bytes:
        with _explained(self._name):
            data = self._stream.read(size)
        if len(data) != size:
            raise Unreadable(f"{self._name} ends too early: the file is damaged")
        return data


class Arrays:
    """The arrays of an open file."""

    def __init__(self, path: Path, file: zipfile.ZipFile, stack: contextlib.ExitStack) -> None:
        self._path, self._file, self._stack = path, file, stack

    @property
    def names(self) -> list[str]:
        """What the file says it holds. In a stranger's file that may be any text."""
        return sorted(name.removesuffix(".npy") for name in self._file.namelist() if name.endswith(".npy"))

    def column(self, name: str) -> Column:
        """Open one of the arrays and read its header."""
        shown = f"{self._path}: {name}"
        with _explained(shown):
            info = self._file.getinfo(f"{name}.npy")
            stream = self._stack.enter_context(self._file.open(info))
        return Column(shown, stream, info.file_size)


@contextlib.contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """The arrays of a file, until the context ends.

    Raises:
      OSError: there is no such file, or it is not a regular one.
      Unreadable: it is not an archive; and from what is given, whatever else is wrong with it.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_regular(path))
        with _explained(str(path)):
            archive = stack.enter_context(zipfile.ZipFile(file))
        yield Arrays(path, archive, stack)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype, bool, int]:
    """``(shape, dtype, whether in Fortran's order, bytes before the first row)``. Never more is read than a header may have."""
    magic = stream.read(8)
    width = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}[magic]
    length = stream.read(width)
    size = int.from_bytes(length, "little")
    if size > HEADER_BYTES:
        raise ValueError(size)
    parse = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = parse(io.BytesIO(length + stream.read(size)))
    return shape, dtype, fortran_order, len(magic) + width + size


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Whatever reading a stranger's bytes may raise, as an error of ours."""
    try:
        yield
    except Exception as error:
        why = type(error).__name__
        raise Unreadable(f"{name} is damaged, or is not from a .npz file of numbers ({why})") from None

"""Safe reader of untrusted ``.npz`` files, a few rows at a time.

Only requested arrays are opened. Headers are checked against the size of the array before memory is allocated, and nothing is
unpickled. Messages of zipfile and NumPy are not passed on: NumPy's suggest allowing pickles, which run code.
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
"""Longest header that is read; that of an array of numbers has about a hundred bytes."""
PIECE_BYTES = 2**20
"""Skipped rows are read in pieces of this size, because the checksum includes them."""


class Unreadable(ValueError):
    """Raised when a file is damaged or is not an ``.npz`` file of numbers."""


class Column:
    """One array of a file, read in order from its first row."""

    def __init__(self, name: str, stream: IO[bytes], size: int) -> None:
        """Read the header. ``name`` is for error messages; ``size`` is that of the header and all rows, in bytes."""
        self._name, self._stream = name, stream
        with _explained(name):
            self.shape, self.dtype, fortran_order, offset = _header(stream)
        claimed = f"{self.dtype}{list(self.shape)}"
        if self.dtype.hasobject:
            raise Unreadable(f"{name} holds Python objects, which could run code: only arrays of numbers are read")
        if fortran_order and len(self.shape) > 1:
            raise Unreadable(f"{name} is in Fortran order: convert it with np.ascontiguousarray before saving")
        self._row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        if not self.shape or min(self.shape) < 0 or offset + self.shape[0] * self._row_bytes != size:
            raise Unreadable(f"{name} claims to be {claimed} but has {max(size - offset, 0):,} bytes: the file is damaged")

    def skip(self, count: int) -> None:
        """Skip the next ``count`` rows."""
        left = count * self._row_bytes
        while left:
            left -= len(self._exactly(min(left, PIECE_BYTES)))

    def read(self, count: int) -> np.ndarray:
        """Read the next rows, [count, ...]."""
        raw = np.frombuffer(self._exactly(count * self._row_bytes), np.uint8)
        # A bool whose byte is neither 0 nor 1 is undefined behaviour.
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
        """Names of the arrays, as listed in the file; an untrusted file may contain any text."""
        return sorted(name.removesuffix(".npy") for name in self._file.namelist() if name.endswith(".npy"))

    def column(self, name: str) -> Column:
        """Open an array and read its header."""
        shown = f"{self._path}: {name}"
        with _explained(shown):
            info = self._file.getinfo(f"{name}.npy")
            stream = self._stack.enter_context(self._file.open(info))
        return Column(shown, stream, info.file_size)


@contextlib.contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """Open a file and yield its arrays. The yielded object raises ``Unreadable`` for defects.

    Raises:
      OSError: the file does not exist or is not a regular file.
      Unreadable: it is not a zip archive.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_regular(path))
        with _explained(str(path)):
            archive = stack.enter_context(zipfile.ZipFile(file))
        yield Arrays(path, archive, stack)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype, bool, int]:
    """Return ``(shape, dtype, fortran_order, bytes before the first row)``. Reads at most ``HEADER_BYTES`` of header."""
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
    """Convert any exception raised while reading untrusted bytes to ``Unreadable``."""
    try:
        yield
    except Exception as error:
        raise Unreadable(f"{name} is damaged, or is not valid numeric .npz data ({type(error).__name__})") from None

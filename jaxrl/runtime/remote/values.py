"""Values as bytes: a pickle and the buffers of its arrays. Does not import jax."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl.envs.host import one_line

BY_REFERENCE_TO_SCRIPT = b"__main__"
"""Occurs in each pickle that refers to something in the main script, which another process cannot import."""


class Packed(NamedTuple):
    """A value as bytes."""

    pickle: bytes
    buffers: Sequence[Any]
    """Contents of its arrays, in the order in which the pickle refers to them: bytes, or memory that the arrays still use."""

    @property
    def num_bytes(self) -> int:
        """Size of the buffers."""
        return sum(len(buffer) for buffer in self.buffers)

    def copy(self) -> Packed:
        """Return it with buffers that no array uses."""
        return self._replace(buffers=[bytes(buffer) for buffer in self.buffers])


def pack(value: Any) -> Packed:
    """Convert a value to bytes. What the main script or a function defines is sent as code (cloudpickle).

    Raises:
      TypeError: it cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        by_value = BY_REFERENCE_TO_SCRIPT in data
    except Exception:  # a class may raise anything from __reduce__
        by_value = True
    if by_value:
        import cloudpickle  # type: ignore[import-untyped]

        buffers.clear()
        try:
            data = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
        except Exception as error:
            raise TypeError(f"{one_line(error)} ({type(error).__name__})") from error
    return Packed(data, [buffer.raw() for buffer in buffers])


def unpack(packed: Packed) -> Any:
    """Invert ``pack``. Arrays are read-only views of the buffers."""
    return pickle.loads(packed.pickle, buffers=[memoryview(buffer).toreadonly() for buffer in packed.buffers])

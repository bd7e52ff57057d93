"""``Holder``: a worker's object, and the calls to it, the same on both engines. Does not import jax."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl.envs.host import one_line
from jaxrl.runtime.remote.values import Packed, pack, unpack


class Slot(NamedTuple):
    """Place of a shared value among the arguments of a call."""

    number: int


class Exceptional(NamedTuple):
    """Exception of a call, as text."""

    type_name: str
    message: str
    traceback: str


class Holder:
    """An object, and the process that it was made in."""

    def __init__(self) -> None:
        self._pid, self._object = os.getpid(), None

    def start(self, job: Packed) -> Packed | Exceptional:
        """Make the object from a packed ``(function, arguments, keywords)``."""
        try:
            function, args, keywords = unpack(job)
            self._object = function(*args, **keywords)
            self._end_forks()
            return pack(None)
        except Exception as error:
            return self._exceptional(error)

    def call(self, name: str, arguments: Packed, shared: Sequence[Packed]) -> Packed | Exceptional:
        """Call a method with packed ``(arguments, keywords)``, in which each ``Slot`` stands for a shared value."""
        try:
            args, keywords = unpack(arguments)
            if shared:
                values = [unpack(each) for each in shared]
                args = [values[each.number] if isinstance(each, Slot) else each for each in args]
                keywords = {key: values[each.number] if isinstance(each, Slot) else each for key, each in keywords.items()}
            result = self._method(name)(*args, **keywords)
            self._end_forks()
        except Exception as error:
            return self._exceptional(error)
        try:
            return pack(result)
        except TypeError as error:
            return Exceptional("TypeError", f"it returned something that cannot be sent: {error}", traceback.format_exc())

    def _method(self, name: str) -> Any:
        if callable(found := getattr(self._object, name, None)):
            return found
        from jaxrl.settings.aliases import hint_or, similar

        kind = type(self._object).__name__
        if found is not None:
            raise AttributeError(f"{kind}.{name} is not a method: only methods can be called, so write one that returns it")
        names = [each for each in dir(self._object) if not each.startswith("_") and callable(getattr(self._object, each, None))]
        listing = f"It has {', '.join(names) or 'none'}"
        raise AttributeError(f"{kind} has no method {name!r}.{hint_or(similar(name, names, 0.6), listing)}")

    def _exceptional(self, error: Exception) -> Exceptional:
        self._end_forks()
        frames = error.__traceback__ and error.__traceback__.tb_next  # without the frame of this class
        text = "".join(traceback.format_exception(type(error), error, frames))
        return Exceptional(type(error).__name__, one_line(error), text)

    def _end_forks(self) -> None:
        """End a process that the object forked and that came back from the call. Its answer would be a second one."""
        if os.getpid() != self._pid:
            os._exit(0)

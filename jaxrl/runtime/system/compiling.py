"""Compilation in a separate thread. XLA may take minutes, during which the main thread could not handle signals."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, TimeoutError
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")
THREAD = "jaxrl-compile"
GLANCE = 0.05
"""Seconds between checks of whether to continue waiting."""

_leave: ContextVar[Callable[[], object] | None] = ContextVar("leave", default=None)


class Abandoned(BaseException):
    """Waiting for a compilation was abandoned. The compiler cannot be stopped and may still be running."""


@contextlib.contextmanager
def waiting_unless(leave: Callable[[], object]) -> Iterator[None]:
    """Raise ``Abandoned`` from waits for the compiler in this context once ``leave()`` is true. Tracing is not interrupted."""
    token = _leave.set(leave)
    try:
        yield
    finally:
        _leave.reset(token)


class Compiling(Generic[T]):
    """Call of the compiler in progress."""

    def __init__(self, compile_: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        # Not a daemon: if Python ended during a compilation, it would crash. Callers that cannot wait use os._exit.
        threading.Thread(target=self._run, args=(compile_,), name=THREAD).start()

    def _run(self, compile_: Callable[[], T]) -> None:
        try:
            self._future.set_result(compile_())
        except BaseException as error:
            self._future.set_exception(error)

    def result(self) -> T:
        """Wait for the result, and return it or raise its exception, or ``Abandoned`` (see ``waiting_unless``)."""
        leave = _leave.get()
        while leave is not None and not self._future.done():
            if leave():
                raise Abandoned
            with contextlib.suppress(TimeoutError):
                self._future.exception(GLANCE)
        return self._future.result()


def compiled(compile_: Callable[[], T]) -> T:
    """Return the result of a call of the compiler. The wait can be abandoned, see ``waiting_unless``."""
    return compile_() if _leave.get() is None else Compiling(compile_).result()


class CompiledCall:
    """Jitted function. Its first compilation can be abandoned, see ``waiting_unless``; later ones happen within the call."""

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted
        self._is_ready = False

    def __call__(self, *args: Any) -> Any:
        if not self._is_ready and _leave.get() is not None:
            compiled(self.jitted.lower(*args).compile)  # the call below reuses it
        self._is_ready = True
        return self.jitted(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)


def under_way() -> bool:
    """Return whether a compilation is running, which Python would wait for at exit."""
    return any(thread.name == THREAD for thread in threading.enumerate())

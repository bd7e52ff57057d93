"""Compiling in a thread of its own, so that a signal is answered meanwhile: XLA takes minutes, and Python hears nothing in it."""

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
"""Seconds between two looks at whether to wait on."""

_leave: ContextVar[Callable[[], object] | None] = ContextVar("leave", default=None)


class Abandoned(BaseException):
    """A program is not waited for any more. The compiler may still be at work on it, and cannot be stopped."""


@contextlib.contextmanager
def waiting_unless(leave: Callable[[], object]) -> Iterator[None]:
    """Within it, waiting for a compiler raises ``Abandoned`` once ``leave`` says so. Tracing is Python's, and runs to its end."""
    token = _leave.set(leave)
    try:
        yield
    finally:
        _leave.reset(token)


class Compiling(Generic[T]):
    """A call of the compiler under way."""

    def __init__(self, compile_: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        # Not a daemon: Python must not end under a compiler at work, which would crash. Who cannot wait ends by os._exit.
        threading.Thread(target=self._run, args=(compile_,), name=THREAD).start()

    def _run(self, compile_: Callable[[], T]) -> None:
        try:
            self._future.set_result(compile_())
        except BaseException as error:
            self._future.set_exception(error)

    def result(self) -> T:
        """What it gives, or raises.

        Raises:
          Abandoned: see ``waiting_unless``.
        """
        leave = _leave.get()
        while leave is not None and not self._future.done():
            if leave():
                raise Abandoned
            with contextlib.suppress(TimeoutError):
                self._future.exception(GLANCE)
        return self._future.result()


def compiled(compile_: Callable[[], T]) -> T:
    """The value of a call of the compiler, waited for as ``waiting_unless`` says."""
    return compile_() if _leave.get() is None else Compiling(compile_).result()


class CompiledCall:
    """A jitted function whose first program is compiled as ``waiting_unless`` says; others are within their call."""

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted
        self._is_ready = False

    def __call__(self, *args: Any) -> Any:
        if not self._is_ready and _leave.get() is not None:
            compiled(self.jitted.lower(*args).compile)  # the call finds it
        self._is_ready = True
        return self.jitted(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)


def under_way() -> bool:
    """Whether a compiler is at work that nothing waits for, or may wait for at the end of Python."""
    return any(thread.name == THREAD for thread in threading.enumerate())

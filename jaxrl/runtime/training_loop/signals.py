"""Signals: Ctrl-C while modules load, and Ctrl-C, SIGTERM and SIGHUP as requests to stop at the next clean point."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from jaxrl.runtime.system.compiling import under_way

DEBUG_VARIABLE = "JAXRL_DEBUG"
"""If this variable is set, errors are shown with their tracebacks."""

# Windows has no SIGHUP.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

ECHO = 0.5
"""Seconds in which repeated signals count as one request: `timeout`, shells, batch systems and sweeps signal a process directly
and through its group."""

_last_wish = -math.inf


def is_echo() -> bool:
    """Return True if this signal repeats a request: it came within ``ECHO`` seconds of the request's first signal."""
    global _last_wish
    current_time = time.monotonic()
    if current_time - _last_wish < ECHO:
        return True
    _last_wish = current_time
    return False


class Interrupted(KeyboardInterrupt):
    """A signal interrupted the current work. A command then exits with 128 + ``signal``."""

    def __init__(self, message: str = "", number: int = signal.SIGINT, *, shown: bool = False) -> None:
        super().__init__(message)
        self.signal, self.shown = number, shown
        """``shown``: True if the message has been shown."""


def end_in_a_line() -> None:
    """Make a script that does not catch ``Interrupted`` end as the command line does: without a traceback, with 128 + ``signal``.

    A custom ``sys.excepthook``, such as a notebook's or a debugger's, is left alone.
    """
    if sys.excepthook is sys.__excepthook__ and not os.environ.get(DEBUG_VARIABLE):
        sys.excepthook = _end_in_a_line


def _end_in_a_line(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, Interrupted):
        sys.__excepthook__(kind, error, traceback)
        return
    with contextlib.suppress(OSError, ValueError):  # a closed terminal
        sys.stdout.flush()
        if not error.shown:
            print(f"jaxrl: {error}", file=sys.stderr, flush=True)
    code = 128 + error.signal
    if under_way():  # Python would wait for the compiler
        os._exit(code)
    raise SystemExit(code)


def leave_while_loading(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C in jaxrl's processes as Python does, but end the process at once while a module is imported. Echoes are
    ignored, so that they do not interrupt the handling of the first signal.

    During an import some libraries swallow KeyboardInterrupt, others raise another error from it, and the module is left half
    loaded. In a callback of the garbage collector, such as JAX's, Python itself swallows it.
    """
    if is_echo():
        return
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "_xla_gc_callback":
            with contextlib.suppress(OSError):  # a closed terminal
                os.write(2, b"jaxrl: interrupted\n")
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


UNTOUCHED = (signal.default_int_handler, signal.SIG_DFL, leave_while_loading)
"""Handlers that may be replaced. Any other belongs to a notebook, a server, jax.distributed or nohup, and is kept."""


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that have no custom handler with ``handler``.

    Python delivers signals only to the main thread, so this does nothing in other threads.
    """
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) in UNTOUCHED:
                    before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class Interrupt:
    """Handler whose first signal only sets ``requested``. A Ctrl-C after the first signal's echoes raises KeyboardInterrupt.

    Further SIGTERMs and SIGHUPs have no effect: a shell, the kernel and a batch system may each send one.
    """

    requested = 0
    """Number of the first signal; 0: none."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not is_echo() and self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        # Do nothing else here: the interrupted code may hold a lock or be in the middle of a line of output.
        self.requested = self.requested or number

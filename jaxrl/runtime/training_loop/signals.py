"""Signals: Ctrl-C while modules load, and Ctrl-C, SIGTERM and SIGHUP as a wish to stop at the next clean point."""

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
"""Where it is set, errors come with their tracebacks."""

# Windows has no SIGHUP.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

ECHO = 0.5
"""Seconds. `timeout`, a shell, a batch system and a sweep each send a process the signal that its group gets too: one wish."""

_last_wish = -math.inf


def is_echo() -> bool:
    """Whether a signal is one more of the same wish: it came within ``ECHO`` seconds of the first of them."""
    global _last_wish
    now = time.monotonic()
    if now - _last_wish < ECHO:
        return True
    _last_wish = now
    return False


class Interrupted(KeyboardInterrupt):
    """A signal ended what was under way; the exit code of a command is then 128 + ``signal``."""

    def __init__(self, message: str = "", number: int = signal.SIGINT, *, told: bool = False) -> None:
        super().__init__(message)
        self.signal, self.told = number, told
        """``told``: whether the message has been shown."""


def end_in_a_line() -> None:
    """Let a script that does not catch ``Interrupted`` end as the command line does: without a traceback, with 128 + ``signal``.

    Where somebody else shows errors (a notebook, a debugger), that is left alone.
    """
    if sys.excepthook is sys.__excepthook__ and not os.environ.get(DEBUG_VARIABLE):
        sys.excepthook = _end_in_a_line


def _end_in_a_line(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, Interrupted):
        sys.__excepthook__(kind, error, traceback)
        return
    with contextlib.suppress(OSError, ValueError):  # a closed terminal
        sys.stdout.flush()
        if not error.told:
            print(f"jaxrl: {error}", file=sys.stderr, flush=True)
    code = 128 + error.signal
    if under_way():  # Python would wait for the compiler
        os._exit(code)
    raise SystemExit(code)


def leave_while_loading(number: int, frame: FrameType | None) -> None:
    """A handler of Ctrl-C for a process of our own: as Python's, but while a module is imported it ends the process at once, and
    an echo does not interrupt what the first one has set off.

    A KeyboardInterrupt there is swallowed by some libraries, turned into another error by others, and leaves half of a module.
    In a callback of the garbage collector, as JAX has one, Python itself would swallow it.
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
"""Any other handler belongs to somebody (a notebook, a server, jax.distributed, nohup), whose way of stopping is kept."""


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let ``handler`` answer the signals that nobody else has taken.

    Python delivers signals to the main thread alone, so elsewhere this does nothing.
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
    """The first signal only sets ``requested``; a Ctrl-C later than its echoes raises KeyboardInterrupt.

    Further SIGTERMs and SIGHUPs change nothing: a shell, the kernel and a batch system may each send one for the same end.
    """

    requested = 0
    """The number of the signal that came."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not is_echo() and self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        # And nothing else: whatever this interrupts may hold a lock, or be half way through a line.
        self.requested = self.requested or number

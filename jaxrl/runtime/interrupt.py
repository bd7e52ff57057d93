"""Ctrl-C as a wish to stop at the next clean point."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While it is entered, the first Ctrl-C only sets ``requested``; the second one raises KeyboardInterrupt.

    Python delivers signals to the main thread alone, so elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        # A handler that is not Python's own belongs to somebody (a notebook, a server) whose way of stopping is kept.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True  # and nothing else: whatever it interrupts may hold a lock, or be half way through a line

"""Ctrl-C and SIGTERM as a wish to stop at the next clean point."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
UNTOUCHED = (signal.default_int_handler, signal.SIG_DFL)
"""Any other handler belongs to somebody (a notebook, a server, jax.distributed), whose way of stopping is kept."""


class Interrupt:
    """While it is entered, the first signal only sets ``requested``; a second one raises KeyboardInterrupt.

    Python delivers signals to the main thread alone, so elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.requested = 0
        """The number of the signal that came."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) in UNTOUCHED:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = number  # and nothing else: whatever it interrupts may hold a lock, or be half way through a line

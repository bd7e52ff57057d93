"""Clock of the time that this process has run, for timeouts of other processes."""

from __future__ import annotations

import time

LOOK = 0.25
"""Seconds between checks of silent processes."""

STANDSTILL = 1.0
"""Seconds after which a process that was stopped (SIGSTOP) is replaced or killed."""


class Ran:
    """Seconds that this process has run, without time in which it was suspended.

    A batch system or a container suspends child processes together with it, so they have not hung in that time.
    """

    def __init__(self) -> None:
        self.seconds, self.last = 0.0, time.monotonic()

    @property
    def is_due(self) -> bool:
        """True if the next check is due. Checks read one system file per process, so they are rarer than messages."""
        return time.monotonic() - self.last >= LOOK

    def look(self) -> float:
        """Return the seconds. Call this when ``is_due``; longer gaps count as suspensions."""
        current_time = time.monotonic()
        self.seconds, self.last = self.seconds + min(current_time - self.last, 2 * LOOK), current_time
        return self.seconds

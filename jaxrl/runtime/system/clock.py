"""The time that a process has run for, as one counts it that waits for others."""

from __future__ import annotations

import time

LOOK = 0.25
"""Seconds between two looks at processes that tell nothing."""


class Ran:
    """Seconds in which this process ran. Where it was suspended, those that it started were, too, as a batch system or a
    container does it, and have not hung meanwhile."""

    def __init__(self) -> None:
        self.seconds, self.last = 0.0, time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a look: messages come more often, and each costs a file of the system's per process."""
        return time.monotonic() - self.last >= LOOK

    def look(self) -> float:
        """To be asked when it ``is_due``."""
        now = time.monotonic()
        self.seconds, self.last = self.seconds + min(now - self.last, 2 * LOOK), now
        return self.seconds

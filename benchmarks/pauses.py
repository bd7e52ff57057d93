"""Detection of pauses of the machine: a virtual machine can be suspended while clocks continue. Standard library only."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

TICK, LONGEST = 0.05, 1.0
"""Seconds between two readings of the clock, and the shortest pause. A busy machine delays a sleeping thread far less."""
T = TypeVar("T")


class PauseWatch:
    """A thread that sleeps and records when it slept too long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Any] = time.sleep) -> None:
        self.seconds = 0.0
        """Total of all pauses so far."""
        self._clock, self._sleep = clock, sleep
        self._last = clock()

    def start(self) -> PauseWatch:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def _run(self) -> None:
        while True:
            self._sleep(TICK)
            self.look()

    def look(self) -> None:
        current_time = self._clock()
        if current_time - self._last > LONGEST:
            self.seconds += current_time - self._last
        self._last = current_time

    def undisturbed(self, measure: Callable[[], T], label: str, tries: int = 4) -> T:
        """Call ``measure`` again as long as the machine paused during the call. Return the result of the last try."""
        for left in reversed(range(tries)):
            before = self.seconds
            result = measure()
            self._sleep(2 * TICK)  # the thread may not have woken yet
            if self.seconds == before:
                break
            again = "measured again" if left else "kept, since all tries were disturbed"
            print(f"{label}: the machine paused for {self.seconds - before:.0f} s; {again}", file=sys.stderr, flush=True)
        return result

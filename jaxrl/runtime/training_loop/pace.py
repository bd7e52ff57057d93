"""Estimated time to the end of training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Pace:
    """Speed of training in this process, without compilation."""

    def __init__(self, iterations: int, compile_seconds: Callable[[], float], *, skip_first: bool) -> None:
        """
        Args:
          iterations: iterations of training at the end.
          compile_seconds: returns the seconds spent on compilation so far.
          skip_first: do not count the first iteration, since it compiles and ``compile_seconds`` does not include that.
            ``eta`` must then be called after it.
        """
        self._iterations, self._compile_seconds, self._skip_first = iterations, compile_seconds, skip_first
        self.begin(0)

    def begin(self, trained: int) -> None:
        """Start the clock after ``trained`` iterations."""
        self._first, self._start = trained, self._now()

    def eta(self, trained: int) -> float:
        """Return the seconds from here, after ``trained`` iterations, to the end; NaN if none was counted yet."""
        if self._skip_first and trained > self._first:
            self._skip_first = False
            self.begin(trained)
        if trained == self._first:
            return math.nan
        return (self._now() - self._start) / (trained - self._first) * (self._iterations - trained)

    def _now(self) -> float:
        return time.perf_counter() - self._compile_seconds()

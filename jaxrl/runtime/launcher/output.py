"""Output of a process of a group, shown line by line after the number of the process."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

LONGEST = 65_536
"""Maximum bytes of a line; a longer one is shown in pieces."""
SHORT = 200
"""Maximum characters of a line in a message."""
PATIENCE = 5.0
"""Seconds to wait for the last output of an ended process. Its descendants may still have the pipe open."""


class RankOutput:
    """Pipe for the output of one process. A thread passes its lines to ``show`` as ``[0] text``."""

    def __init__(self, number: int, show: Callable[[str], None]) -> None:
        self._number, self._show = number, show
        self._end, self.into = os.pipe()
        """The end that is read here, and the end of the process."""
        self._last: deque[str] = deque(maxlen=3)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def last_lines(self) -> str:
        """The last lines that are not blank, joined."""
        return " | ".join(text if len(text) <= SHORT else f"{text[:SHORT]}…" for text in self._last)

    def hand_over(self) -> None:
        """Close this process's copy of the other end. Call it once the process has started."""
        os.close(self.into)

    def close(self) -> None:
        """Wait until the rest of the output is shown."""
        self._reader.join(PATIENCE)

    def _read(self) -> None:
        """Show lines as a terminal would in the end, without text overwritten after carriage returns."""
        with open(self._end, "rb") as pipe:
            while line := pipe.readline(LONGEST):
                text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
                self._show(f"[{self._number}] {text}")
                if text.strip():
                    self._last.append(" ".join(text.split()))

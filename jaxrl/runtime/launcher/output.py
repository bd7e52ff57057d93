"""Output of a process of a group, shown line by line after the number of the process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

LONGEST = 65_536
"""Maximum bytes of a line; a longer one is shown in pieces."""
SHORT = 200
"""Maximum characters of a line in a message."""
HELD = 2**20
"""Maximum bytes to read after the process has ended, more than a pipe holds. Its descendants may still write to the pipe."""


class RankOutput:
    """Pipe for the output of one process. Its lines are passed to ``show`` as ``[0] text``."""

    def __init__(self, number: int, show: Callable[[str], None]) -> None:
        self._number, self._show, self._begun = number, show, b""
        self.end, self.into = os.pipe()
        """The end that is read here, and the end of the process."""
        os.set_blocking(self.end, False)
        self._last: deque[str] = deque(maxlen=3)
        self.is_open = True
        """False once the pipe is closed and read."""

    @property
    def last_lines(self) -> str:
        """The last lines that are not blank, joined."""
        return " | ".join(text if len(text) <= SHORT else f"{text[:SHORT]}…" for text in self._last)

    def hand_over(self) -> None:
        """Close this process's copy of the other end. Call it once the process has started."""
        os.close(self.into)

    def read(self) -> int:
        """Show new output, and return its number of bytes: 0 when all copies of the other end are closed."""
        data = os.read(self.end, LONGEST)
        self.is_open = bool(data)
        *whole, self._begun = (self._begun + data).split(b"\n")
        for line in whole:
            self._tell(line)
        if len(self._begun) >= LONGEST or not data:
            self._tell_begun()
        return len(data)

    def close(self) -> None:
        """Show the remaining output, including an unfinished line."""
        left = HELD
        try:
            while left > 0 and (came := self.read()):
                left -= came
        except BlockingIOError:  # a descendant of the process has the other end open
            pass
        self._tell_begun()
        os.close(self.end)

    def _tell_begun(self) -> None:
        if self._begun:
            self._tell(self._begun)
        self._begun = b""

    def _tell(self, line: bytes) -> None:
        """Show a line as a terminal would in the end, without text overwritten after carriage returns."""
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        self._show(f"[{self._number}] {text}")
        if text.strip():
            self._last.append(" ".join(text.split()))

"""What a process of a group prints: shown line by line, with the number of the process before it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

LONGEST = 65_536
"""Bytes of a line; a longer one is shown in pieces."""
SHORT = 200
"""Characters of a line in a message."""
HELD = 2**20
"""Bytes, and more than a pipe holds: to be read of one whose process has ended, though others may write to it still."""


class RankOutput:
    """A pipe for what one process prints. Its lines are given to ``show``, as ``[0] text``."""

    def __init__(self, number: int, show: Callable[[str], None]) -> None:
        self._number, self._show, self._begun = number, show, b""
        self.end, self.into = os.pipe()
        """The end that is read here, and the one that is the process's."""
        os.set_blocking(self.end, False)
        self._last: deque[str] = deque(maxlen=3)
        self.is_open = True
        """Whether there may be more."""

    @property
    def last_lines(self) -> str:
        """The last ones that say something, in one line."""
        return " | ".join(text if len(text) <= SHORT else f"{text[:SHORT]}…" for text in self._last)

    def hand_over(self) -> None:
        """To be called when the process has its end, so that this one holds it no more."""
        os.close(self.into)

    def read(self) -> int:
        """Show what has come, and say how many bytes that were: 0 when nobody has the other end any more."""
        data = os.read(self.end, LONGEST)
        self.is_open = bool(data)
        *whole, self._begun = (self._begun + data).split(b"\n")
        for line in whole:
            self._tell(line)
        if len(self._begun) >= LONGEST or not data:
            self._tell_begun()
        return len(data)

    def close(self) -> None:
        """Show what is left, a line without an end too."""
        left = HELD
        try:
            while left > 0 and (came := self.read()):
                left -= came
        except BlockingIOError:  # whatever the process has started holds the other end
            pass
        self._tell_begun()
        os.close(self.end)

    def _tell_begun(self) -> None:
        if self._begun:
            self._tell(self._begun)
        self._begun = b""

    def _tell(self, line: bytes) -> None:
        """As a terminal shows it in the end: what was drawn over is left out."""
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        self._show(f"[{self._number}] {text}")
        if text.strip():
            self._last.append(" ".join(text.split()))

"""Standard streams, which may go away under a process: a pipe's reader ends, a terminal is closed, a disk is full."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO


class Screen:
    """A stream for as long as it can be written to; from its first failure on it takes everything, and shows nothing."""

    def __init__(self, stream: TextIO | None, lost: Callable[[str], None] = lambda reason: None) -> None:
        """``lost`` is called once, with what the system says."""
        self._stream, self._lost = stream, lost
        self.is_gone = stream is None
        """A process without a terminal may have no stream at all."""

    def write(self, text: str) -> int:
        self._attempt("write", text)
        return len(text)

    def flush(self) -> None:
        self._attempt("flush")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, method: str, *args: Any) -> None:
        if self.is_gone:
            return
        try:
            getattr(self._stream, method)(*args)
        except UnicodeEncodeError as error:  # a stream in ASCII, say: what it lacks is a question mark
            self._attempt(method, *(text.encode(error.encoding, "replace").decode(error.encoding) for text in args))
        except (OSError, ValueError) as error:  # ValueError: a script has closed it
            self.is_gone = True
            discard(self._stream)
            self._lost(getattr(error, "strerror", None) or str(error))


def screen() -> Screen:
    """stdout for what only informs: whatever becomes of it, work goes on. One line on stderr tells of it, if that is open."""

    def tell(reason: str) -> None:
        stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # a live panel lends it out, and goes away with stdout
        print(f"jaxrl: stdout cannot be written to ({reason}): going on without a display", file=Screen(stderr), flush=True)

    return Screen(sys.stdout, tell)


def discard(stream: TextIO | None) -> None:
    """Send what a stream still holds, and all that follows, nowhere; else Python fails with it when the process ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream that is no file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)

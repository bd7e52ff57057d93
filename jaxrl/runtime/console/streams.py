"""Standard streams that may fail during a run: a pipe's reader ends, a terminal closes, a disk is full."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO


class Screen:
    """Wrapper of a stream. After the first failed write, it accepts and discards all output."""

    def __init__(self, stream: TextIO | None, lost: Callable[[str], None] = lambda reason: None) -> None:
        """``lost`` is called once with the system's error message when the stream fails."""
        self._stream, self._lost = stream, lost
        self.is_gone = stream is None
        """True if output is discarded. A process without a terminal may have no stream."""

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
        except UnicodeEncodeError as error:  # an ASCII stream, for example: replace characters by question marks
            self._attempt(method, *(text.encode(error.encoding, "replace").decode(error.encoding) for text in args))
        except (OSError, ValueError) as error:  # ValueError: the stream was closed by a script
            self.is_gone = True
            discard(self._stream)
            self._lost(getattr(error, "strerror", None) or str(error))


def screen() -> Screen:
    """Return stdout for informational output. If it fails, the run continues, and one line on stderr reports the failure."""

    def tell(reason: str) -> None:
        stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # a live panel redirects stderr, and fails with stdout
        print(f"jaxrl: stdout cannot be written to ({reason}): continuing without a display", file=Screen(stderr), flush=True)

    return Screen(sys.stdout, tell)


def discard(stream: TextIO | None) -> None:
    """Redirect a failed stream to the null device. Otherwise Python raises when it flushes the stream at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the stream is not a file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)

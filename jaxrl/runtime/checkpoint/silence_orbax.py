"""Silence around orbax and tensorstore, whose every error is raised anyway."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any


class Quiet:
    """Without what orbax and tensorstore print: every error several times over."""

    def __enter__(self) -> Quiet:
        self._before = sys.unraisablehook
        # Of writes that orbax gave up: told whenever the garbage collector finds them, as late as the end of the process.
        warnings.filterwarnings("ignore", r"coroutine '.*serialize.*' was never awaited", RuntimeWarning)
        logging.getLogger("absl").addFilter(self._is_not_from_orbax)
        logging.getLogger("asyncio").addFilter(self._is_not_from_tensorstore)
        sys.unraisablehook = self._hook
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("absl").removeFilter(self._is_not_from_orbax)
        logging.getLogger("asyncio").removeFilter(self._is_not_from_tensorstore)
        if sys.unraisablehook == self._hook:
            sys.unraisablehook = self._before

    def _is_not_from_orbax(self, record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    def _is_not_from_tensorstore(self, record: logging.LogRecord) -> bool:
        """asyncio tells of each further write that failed, when its future is collected and nobody had asked for it."""
        error = record.exc_info[1] if record.exc_info else None
        return not ("was never retrieved" in record.getMessage() and isinstance(error, ValueError) and "OCDBT" in str(error))

    def _hook(self, unraisable: Any) -> None:
        """tensorstore tells an event loop of each write that fails, and orbax has closed that loop after the first."""
        error = unraisable.exc_value
        if not (unraisable.object is None and isinstance(error, RuntimeError) and "Event loop is closed" in str(error)):
            self._before(unraisable)

"""Suppression of log output of orbax and tensorstore, whose errors are all raised as exceptions anyway."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any


class Quiet:
    """Context manager that suppresses the output of orbax and tensorstore, which report every error several times."""

    def __enter__(self) -> Quiet:
        self._before = sys.unraisablehook
        # Writes that orbax abandoned are reported when the garbage collector finds them, possibly at the end of the process.
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
        """asyncio logs each further failed write when its future is garbage-collected without having been awaited."""
        error = record.exc_info[1] if record.exc_info else None
        return not ("was never retrieved" in record.getMessage() and isinstance(error, ValueError) and "OCDBT" in str(error))

    def _hook(self, unraisable: Any) -> None:
        """tensorstore reports each failed write to an event loop, which orbax closes after the first failure."""
        error = unraisable.exc_value
        if not (unraisable.object is None and isinstance(error, RuntimeError) and "Event loop is closed" in str(error)):
            self._before(unraisable)

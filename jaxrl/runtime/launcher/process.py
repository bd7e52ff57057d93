"""``Rank``: one process of a group, with its output and its fault."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from jaxrl.envs.subprocess.child import Child
from jaxrl.envs.subprocess.inbox import CHUNK
from jaxrl.runtime.distributed.cluster import PORT_TAKEN
from jaxrl.runtime.launcher.output import RankOutput


class Kind(IntEnum):
    """Kind of a fault. If several occur together, the first kind in this order caused the others."""

    LOST = 0
    """The process was killed, or is stopped."""
    FAILED = 1
    """The process ended with an error."""
    DISPLACED = 2
    """Another program uses the group's port."""
    REFUSED = 3
    """The request was invalid; a restart would not help."""
    SAVED = 4
    """The process saved and ended as after SIGTERM."""
    ABORTED = 5
    """JAX aborted the process because another one is gone."""


BY_CODE = {
    2: Kind.REFUSED,
    PORT_TAKEN: Kind.DISPLACED,
    128 + signal.SIGTERM: Kind.SAVED,
    128 + signal.SIGABRT: Kind.ABORTED,
    -signal.SIGABRT: Kind.ABORTED,
}


class Fault(NamedTuple):
    """Fault of a process. The smallest of several is the cause."""

    kind: Kind
    when: float
    number: int
    how: str
    """Predicate that follows "rank 1"."""
    said: str
    """Last lines of its output, joined."""


class Rank:
    """A process with its number in the group."""

    def __init__(self, number: int, command: Sequence[str], variables: Mapping[str, str], show: Callable[[str], None]) -> None:
        self.number, self.output = number, RankOutput(number, show)
        self.code: int | None = None
        """Exit code, negative for a signal; None while it runs."""
        self.how, self.when = "", 0.0
        """How it ended, and when the end of the process or its connection was detected."""
        self.stopped: float | None = None
        """Time on the clock of ``Ran`` when it was found to be stopped; None if it is not."""
        try:
            self.child = Child(
                "jaxrl.runtime.launcher.process_main",
                variables={"PYTHONUNBUFFERED": "1", **variables},  # output is not lost if it is killed
                output=self.output.into,
            )
        except BaseException:
            self.output.hand_over()
            self.output.close()
            raise
        self.output.hand_over()
        self.child.send([*command])

    @property
    def is_running(self) -> bool:
        return self.code is None

    @property
    def is_ending(self) -> bool:
        """True after its connection has ended and before the process has."""
        return self.is_running and self.when > 0

    def hear(self) -> None:
        """Read from its connection to detect the end; the data is ignored."""
        with contextlib.suppress(OSError):
            if os.read(self.child.connection.fileno(), CHUNK):
                return
        self.when = time.monotonic()

    def look(self) -> None:
        """Detect the end of the process, and record its exit code."""
        if self.is_running and self.child.has_ended:
            self.when = self.when or time.monotonic()
            self.how = self.child.how_it_ended()
            self.code = self.child.process.returncode
            self.output.close()

    def look_for_standstill(self, elapsed: float) -> None:
        if not self.child.is_stopped:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = elapsed

    def fault(self, elapsed: float, patience: float) -> Fault | None:
        """Return the process's fault, if it has one. A process that is stopped for ``patience`` seconds is lost."""
        if self.code:
            kind = BY_CODE.get(self.code, Kind.LOST if self.code < 0 else Kind.FAILED)
            return Fault(kind, self.when, self.number, self.how, self.output.last_lines)
        if self.is_running and self.stopped is not None and elapsed - self.stopped >= patience:
            how = f"was stopped (SIGSTOP) for {elapsed - self.stopped:.0f} s"
            return Fault(Kind.LOST, 0.0, self.number, how, self.output.last_lines)
        return None

    def ask_to_end(self) -> None:
        """Send SIGTERM. Its pid cannot be reused before the process is waited for."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.process.pid, signal.SIGTERM)

    def close(self) -> None:
        """End the process, and show the rest of its output."""
        self.child.release()
        if self.is_running:
            self.output.close()

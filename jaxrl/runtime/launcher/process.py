"""One process of a group: what it prints, and what befell it."""

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
    """Of a fault; where several come together, the first of these is the cause of the others."""

    LOST = 0
    """It was killed, or stands still."""
    FAILED = 1
    """It ended by an error of its own."""
    DISPLACED = 2
    """Another program has the port at which they were to meet."""
    REFUSED = 3
    """It was asked for what cannot be done; another start would not mend that."""
    SAVED = 4
    """It ended as after SIGTERM, which lets all save."""
    ABORTED = 5
    """JAX ended it, because another one is gone."""


BY_CODE = {
    2: Kind.REFUSED,
    PORT_TAKEN: Kind.DISPLACED,
    128 + signal.SIGTERM: Kind.SAVED,
    128 + signal.SIGABRT: Kind.ABORTED,
    -signal.SIGABRT: Kind.ABORTED,
}


class Fault(NamedTuple):
    """What befell a process. The least of several is the cause."""

    kind: Kind
    when: float
    number: int
    how: str
    """In words that go after "rank 1"."""
    said: str
    """Its last lines, in one."""


class Rank:
    """A process with its number in the group."""

    def __init__(self, number: int, command: Sequence[str], variables: Mapping[str, str], show: Callable[[str], None]) -> None:
        self.number, self.output = number, RankOutput(number, show)
        self.code: int | None = None
        """What it ended with, negative for a signal."""
        self.how, self.when = "", 0.0
        """How it ended, and when it, or its connection, was first found to have."""
        self.stopped: float | None = None
        """Since when it stands still, by a clock of ``Ran``."""
        try:
            self.child = Child(
                "jaxrl.runtime.launcher.process_main",
                variables={"PYTHONUNBUFFERED": "1", **variables},  # what it prints is seen, also where it is killed then
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
        """Whether its connection has ended, and it has not yet."""
        return self.is_running and self.when > 0

    def hear(self) -> None:
        """Take note of the end of its connection; whatever else that brings is not for this process."""
        with contextlib.suppress(OSError):
            if os.read(self.child.connection.fileno(), CHUNK):
                return
        self.when = time.monotonic()

    def look(self) -> None:
        """Take note of its end."""
        ended = self.child.has_ended
        if self.is_running and (ended or (ended is None and self.when)):
            self.when = self.when or time.monotonic()
            self.how = self.child.how_it_ended()
            self.code = self.child.process.returncode
            self.output.close()

    def look_for_standstill(self, now: float) -> None:
        if not self.child.is_stopped:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = now

    def fault(self, now: float, patience: float) -> Fault | None:
        """What is wrong with it; to stand still is, for longer than ``patience`` seconds."""
        if self.code:
            kind = BY_CODE.get(self.code, Kind.LOST if self.code < 0 else Kind.FAILED)
            return Fault(kind, self.when, self.number, self.how, self.output.last_lines)
        if self.is_running and self.stopped is not None and now - self.stopped >= patience:
            how = f"stands still (SIGSTOP), for {now - self.stopped:.0f} s"
            return Fault(Kind.LOST, 0.0, self.number, how, self.output.last_lines)
        return None

    def ask_to_end(self) -> None:
        """By SIGTERM. Until it is waited for, its number is nobody else's."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.process.pid, signal.SIGTERM)

    def close(self) -> None:
        """End it, and show what it has said last."""
        self.child.release()
        if self.is_running:
            self.output.close()

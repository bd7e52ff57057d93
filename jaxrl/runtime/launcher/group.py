"""The processes of a group, from their start to their end: what they print, how they do, and which of them failed first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from jaxrl.runtime.launcher.process import Fault, Kind, Rank
from jaxrl.runtime.system.clock import LOOK, Ran

SOON = 0.01
"""Seconds between two looks at a process that is ending."""
SETTLE = 0.5
"""Seconds after a fault in which others may show that it was theirs."""
CONFESSION = 5.0
"""Seconds after one has ended as by a wrong request. It may have heard from another one that this one fails, which that one tells
before it ends."""
FAREWELL = 30.0
"""Seconds, after one has saved and ended, in which the others may do so."""


class RankGroup:
    """Processes that were started together, and end together: with ``close`` at the latest."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Sequence[Mapping[str, str]],
        heartbeat: float,
        show: Callable[[str], None],
    ) -> None:
        """
        Args:
          command: what each of them runs.
          variables: of each one's environment.
          heartbeat: seconds for which one may stand still.
          show: is given each line that they print.

        Raises:
          OSError: so many cannot be started.
        """
        self.heartbeat, self.ran = heartbeat, Ran()
        self.ranks: list[Rank] = []
        try:
            for number, each in enumerate(variables):
                self.ranks.append(Rank(number, command, each, show))
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    @property
    def running(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.is_running]

    def look(self) -> None:
        """Wait a moment for something to happen, show what was printed, and take note of who has ended or stands still."""
        running = self.running
        heard: dict[Any, Callable[[], Any]] = {rank.child.connection: rank.hear for rank in running if not rank.is_ending}
        heard |= {rank.output.end: rank.output.read for rank in running if rank.output.is_open}
        for ready in wait([*heard], SOON if any(rank.is_ending for rank in running) else LOOK):
            heard[ready]()
        for rank in running:
            rank.look()
        if self.ran.is_due:
            now = self.ran.look()
            for rank in self.running:
                rank.look_for_standstill(now)

    def cause(self) -> Fault | None:
        """What has gone wrong first, once it is clear; None while all goes well.

        Where a process is lost, JAX ends the others, and these may be seen to end before it; and one that was asked to end lets
        all save.
        """
        first = self._fault(self.heartbeat)
        if first is None:
            return None
        late = time.monotonic() + {Kind.SAVED: FAREWELL, Kind.REFUSED: CONFESSION}.get(first.kind, SETTLE)
        while self.running and time.monotonic() < late:
            self.look()
        return self._fault(0.0)

    def end_by_itself(self) -> None:
        """Ask all to save and end, and wait until they have."""
        for rank in self.running:
            rank.ask_to_end()
        before, late = len(self.running), float("inf")
        while self.running and time.monotonic() < late:
            self.look()
            if len(self.running) < before:
                late = min(late, time.monotonic() + FAREWELL)
            if any(rank.fault(self.ran.seconds, self.heartbeat) for rank in self.running):  # it stands still, and hears nothing
                return

    def close(self) -> None:
        """End all that run still, at once, and then wait for them."""
        for rank in self.running:
            rank.child.kill()
        for rank in self.ranks:
            rank.close()

    def _fault(self, patience: float) -> Fault | None:
        """The cause of the faults that there are now."""
        faults = (rank.fault(self.ran.seconds, patience) for rank in self.ranks)
        return min((fault for fault in faults if fault is not None), default=None)

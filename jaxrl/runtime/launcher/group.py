"""``RankGroup``: start the processes of a group, show their output, find which of them failed first, and end them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from jaxrl.runtime.launcher.process import Fault, Kind, Rank
from jaxrl.runtime.system.clock import LOOK, Ran

SOON = 0.01
"""Seconds between two checks of a process that is ending."""
SETTLE = 0.5
"""Seconds to wait after a fault for another process's fault that may have caused it."""
CONFESSION = 5.0
"""Seconds to wait after a process ended because of a wrong request. It may only have received the error of another process, which
reports the error before it ends."""
FAREWELL = 30.0
"""Seconds that the other processes have to save and end, after one has."""


class RankGroup:
    """Processes that start together and end together, at the latest with ``close``.

    Args:
      command: command that each process runs.
      variables: environment variables of each process.
      heartbeat: seconds after which a stopped process is lost.
      show: called with each line that the processes print, by a thread of each.

    Raises:
      OSError: the processes cannot be started.
    """

    def __init__(
        self, command: Sequence[str], variables: Sequence[Mapping[str, str]], heartbeat: float, show: Callable[[str], None]
    ) -> None:
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
        """Wait briefly for an event, and detect processes that have ended or are stopped."""
        running = self.running
        heard: dict[Any, Rank] = {rank.child.connection: rank for rank in running if not rank.is_ending}
        for source in wait([*heard], SOON if any(rank.is_ending for rank in running) else LOOK):
            heard[source].hear()
        for rank in running:
            rank.look()
        if self.ran.is_due:
            elapsed = self.ran.look()
            for rank in self.running:
                rank.look_for_standstill(elapsed)

    def cause(self) -> Fault | None:
        """Return the first fault, once it is clear; None if there is no fault.

        When a process is lost, JAX ends the others, and their ends may be detected first. When one process receives SIGTERM, all
        may save before they end.
        """
        first = self._fault(self.heartbeat)
        if first is None:
            return None
        late = time.monotonic() + {Kind.SAVED: FAREWELL, Kind.REFUSED: CONFESSION}.get(first.kind, SETTLE)
        while self.running and time.monotonic() < late:
            self.look()
        return self._fault(0.0)

    def end_by_itself(self) -> None:
        """Ask all processes to save and end, and wait for them."""
        for rank in self.running:
            rank.ask_to_end()
        before, late = len(self.running), float("inf")
        while self.running and time.monotonic() < late:
            self.look()
            if len(self.running) < before:
                late = min(late, time.monotonic() + FAREWELL)
            if any(rank.fault(self.ran.seconds, self.heartbeat) for rank in self.running):  # a stopped process gets no signals
                return

    def close(self) -> None:
        """Kill the running processes, and wait for them."""
        for rank in self.running:
            rank.child.kill()
        for rank in self.ranks:
            rank.close()

    def _fault(self, patience: float) -> Fault | None:
        """Return the cause of the current faults."""
        faults = (rank.fault(self.ran.seconds, patience) for rank in self.ranks)
        return min((fault for fault in faults if fault is not None), default=None)

"""``supervise``: run a group of processes, and restart it after faults, until it ends well or has had too many."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxrl.runtime.launcher.assignments import places
from jaxrl.runtime.launcher.group import RankGroup
from jaxrl.runtime.launcher.process import Fault, Kind
from jaxrl.runtime.training_loop.signals import Interrupt, Interrupted, handled

MAX_MOVES = 10
"""Number of times that another port is chosen; after that, a taken port counts as a fault."""


class LaunchPlan(NamedTuple):
    """Command and devices of a group."""

    command: Sequence[str]
    """A jaxrl command with its flags, or a script with its arguments. Run again, it resumes from its last checkpoint."""
    devices: Sequence[Mapping[str, str]]
    """Environment variables that give each process its devices."""
    max_restarts: int
    heartbeat: float


def supervise(plan: LaunchPlan, show: Callable[[str], None]) -> Fault | None:
    """Run one process for each of ``plan.devices``. When one is lost or fails, all are ended and started again.

    Args:
      show: called with each line that the processes print, after the number of the process, and with each fault.

    Returns:
      None if all ended well; else the fault after which they were not started again.

    Raises:
      Interrupted: Ctrl-C, SIGTERM or SIGHUP; all processes have saved and ended.
      KeyboardInterrupt: a second Ctrl-C; all processes were killed.
      OSError: the processes cannot be started.
    """
    interrupt, restart, moves = Interrupt(), 0, 0
    with handled(interrupt.handle):
        while True:
            fault = _run(plan, interrupt, show)
            if interrupt.requested:
                raise Interrupted(number=interrupt.requested)
            if fault is not None and fault.kind is Kind.DISPLACED and moves < MAX_MOVES:
                moves += 1
                show("launch: another program has taken the chosen port; restarting all processes with another one")
                continue
            restart += 1
            if fault is None or fault.kind is Kind.REFUSED or restart > plan.max_restarts:
                return fault
            others, count = ", and the others were ended" * (len(plan.devices) > 1), f"{restart} of {plan.max_restarts}"
            show(f"launch: {in_words(fault)}{others}. Resuming from the last checkpoint (restart {count})")


def in_words(fault: Fault) -> str:
    """Format a fault, as in ``rank 1 was killed by SIGKILL``."""
    asked = " (as after SIGTERM to any of them, which lets all save)" * (fault.kind is Kind.SAVED)
    return f"rank {fault.number} {fault.how}{asked}"


def _run(plan: LaunchPlan, interrupt: Interrupt, show: Callable[[str], None]) -> Fault | None:
    """Start all processes, and return the fault that ended them; None if they ended well or by a signal to this process."""
    here = places(len(plan.devices), plan.heartbeat)
    variables = [{**place, **devices} for place, devices in zip(here, plan.devices, strict=True)]
    with contextlib.closing(RankGroup(plan.command, variables, plan.heartbeat, show)) as group:
        while group.running and not interrupt.requested:
            group.look()
            if fault := group.cause():
                return fault
        if interrupt.requested and group.running:
            name = signal.Signals(interrupt.requested).name
            show(f"launch: {name}: waiting for {len(group.running)} to save and end; Ctrl-C ends them at once")
            group.end_by_itself()
    return None

"""``supervise``: keep a group going through faults of its processes, until it has ended well or too many came."""

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
"""How often another port is chosen before that counts as a fault like others."""


class LaunchPlan(NamedTuple):
    """What to run."""

    command: Sequence[str]
    """A command of jaxrl's with its flags, or a script with its arguments. Given again, it goes on from its last checkpoint."""
    devices: Sequence[Mapping[str, str]]
    """Variables by which each process gets its devices."""
    max_restarts: int
    heartbeat: float


def supervise(plan: LaunchPlan, show: Callable[[str], None]) -> Fault | None:
    """Run it in a process for each of ``plan.devices``. When one of them is lost or fails, all are ended and started again.

    Args:
      show: is given each line that they print, with the number of the process, and what befell them.

    Returns:
      None when all have ended well; else the fault after which they are not started again.

    Raises:
      Interrupted: Ctrl-C, SIGTERM or SIGHUP; all have saved and ended.
      KeyboardInterrupt: a second Ctrl-C; all were ended.
      OSError: so many processes cannot be started.
    """
    interrupt, restart, moves = Interrupt(), 0, 0
    with handled(interrupt.handle):
        while True:
            fault = _run(plan, interrupt, show)
            if interrupt.requested:
                raise Interrupted(number=interrupt.requested)
            if fault is not None and fault.kind is Kind.DISPLACED and moves < MAX_MOVES:
                moves += 1
                show("launch: another program has taken the port that was chosen: all start again at another one")
                continue
            restart += 1
            if fault is None or fault.kind is Kind.REFUSED or restart > plan.max_restarts:
                return fault
            others, count = ", and the others were ended" * (len(plan.devices) > 1), f"{restart} of {plan.max_restarts}"
            show(f"launch: {in_words(fault)}{others}. It goes on from its last checkpoint (restart {count})")


def in_words(fault: Fault) -> str:
    """``rank 1 was killed by SIGKILL``."""
    asked = " (as after SIGTERM to any of them, which lets all save)" * (fault.kind is Kind.SAVED)
    return f"rank {fault.number} {fault.how}{asked}"


def _run(plan: LaunchPlan, interrupt: Interrupt, show: Callable[[str], None]) -> Fault | None:
    """One start of all, up to their end; None where it was good, or came by a signal."""
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

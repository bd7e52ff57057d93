"""``jaxrl status``: show the state of a run or a sweep, from its folder."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from jaxrl.runtime.cli.flags import Flag, read_flags
from jaxrl.runtime.console.tables import terminal
from jaxrl.runtime.status.draw import as_renderable, as_text
from jaxrl.runtime.status.folder_status import AnyStatus, FolderStatus, read_status
from jaxrl.runtime.status.in_words import lines, printable, report
from jaxrl.runtime.status.process_state import LIVE, WELL
from jaxrl.runtime.status.run_status import RunStatus
from jaxrl.runtime.status.sweep_status import WAITING, SweepStatus
from jaxrl.runtime.system.disk import at_home

HELP = """\
Show the state of a run: whether it runs, its progress, speed, returns and last checkpoint, its worker processes with their
restarts, and its last messages. RUN is the folder of a run; or of a sweep, whose jobs are shown in a line each; or one with
runs anywhere below it, which are shown in a line each.

Only the folder is read, so a run on another machine can be shown where both share the folder. No process is disturbed, and no
code of the run is imported.

states:
  running    its process runs; on another machine: it has written within the last minute
  suspended  its process is stopped (SIGSTOP)
  silent     its process is on another machine, and has not written for a minute: it was killed, hangs, or lost the folder
  finished   everything is done, or stop_at was reached
  stopped    a signal such as Ctrl-C stopped it; everything was saved
  diverged   all seeds diverged, or one did and on_nan is "stop"
  failed     an error ended it
  gone       its process ended without saying why: killed (SIGKILL, out of memory), or its machine went down
  unknown    the folder does not name its process, as those of jaxrl 0.2 and before
  waiting    a job of a sweep that has not begun

The exit code is 0 for a run that is running or finished, and for a sweep or a folder whose runs are; 1 for the other states; 2
if the folder cannot be read; 130 after Ctrl-C. With --watch, it is that of the last state.

try:
  jaxrl status runs/ppo-CartPole-v1
  jaxrl status runs/ppo-CartPole-v1 --watch
  jaxrl status runs                              a line for each run
  jaxrl status runs/my-sweep --json
"""

INTERVAL = 1.0
"""Seconds between two looks at the folder."""


@dataclasses.dataclass(frozen=True)
class StatusOptions:
    """Options of ``jaxrl status``."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, a sweep or a search, or one that holds some."""
    json: Flag = False
    """Print one JSON object."""
    watch: Flag = False
    """Show changes until the run ends or Ctrl-C. Without a terminal, each change is a line."""


def main(args: Sequence[str]) -> int:
    """Show the state once, or until the run ends; return the exit code."""
    options = read_flags(StatusOptions, args, prog="jaxrl status", description=HELP)
    if options.json and options.watch:
        raise ValueError("--json prints one object, and --watch never ends with one: repeat jaxrl status --json instead")
    status = read(options.run)
    if options.json:
        print(json.dumps(status.as_json(), indent=2))
    elif options.watch:
        status = watch(options.run, status)
    else:
        show(status)
    return exit_code(status)


def read(run: str) -> AnyStatus:
    """Read the state of a run, a sweep or a search, or of all below a folder. Raise FileNotFoundError if there is none."""
    try:
        return read_status(at_home(run), run, time.time())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}. Name the folder that --out gave, or that the run printed") from None


def states_of(status: AnyStatus) -> list[str]:
    """Return its state, and those of its jobs, or those of all runs of a folder."""
    if isinstance(status, FolderStatus):
        return [*(state for each in status.runs for state in states_of(each)), *("unknown" for _ in status.problems)]
    return [status.state, *(job.state for job in status.jobs)] if isinstance(status, SweepStatus) else [status.state]


def exit_code(status: AnyStatus) -> int:
    return 0 if set(states_of(status)) <= {*WELL, WAITING} else 1


def is_live(status: AnyStatus) -> bool:
    """Return whether the state may change by itself."""
    return bool(set(states_of(status)) & set(LIVE))


def show(status: AnyStatus) -> None:
    found = report(status, time.time())
    if (console := terminal()) is None:
        print(as_text(found), end="", flush=True)
    else:
        console.print(as_renderable(found, console.width))


def watch(run: str, status: AnyStatus) -> AnyStatus:
    """Show the state until it is final, and return it."""
    try:
        return _redraw(run, status, console) if (console := terminal()) else _print_changes(run, status)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("watched until Ctrl-C") from None  # with a text, it is not reported


def _redraw(run: str, status: AnyStatus, console: Any) -> AnyStatus:
    from rich.live import Live

    def drawn() -> Any:
        return as_renderable(report(status, time.time()), console.width)

    with Live(drawn(), console=console, auto_refresh=False) as live:
        while is_live(status):
            time.sleep(INTERVAL)
            status = read(run)
            live.update(drawn(), refresh=True)
    return status


def _print_changes(run: str, status: AnyStatus) -> AnyStatus:
    """Print the state, then a line for each change and each message."""
    show(status)
    before, latest = lines(status), _last_message(status)
    while is_live(status):
        time.sleep(INTERVAL)
        status = read(run)
        messages = status.messages if isinstance(status, RunStatus) else []
        new = [printable(message.text) for message in messages if message.time > latest]
        latest = max(latest, _last_message(status))
        for line in [*new, *(line for line in lines(status) if line not in before)]:
            print(line, flush=True)
        before = lines(status)
    return status


def _last_message(status: AnyStatus) -> float:
    return status.messages[-1].time if isinstance(status, RunStatus) and status.messages else 0.0

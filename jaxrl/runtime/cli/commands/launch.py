"""``jaxrl launch --processes N -- train …``: the same command in several processes on this machine, supervised."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from jaxrl.runtime.cli.flags import Count, read_flags, shown_as

if TYPE_CHECKING:
    from jaxrl.runtime.launcher.process import Fault

HELP = """\
Train in several processes on this machine, which share the seeds and environments of one run: to simulate a cluster, for tests,
or with one process per GPU. After -- follows jaxrl train …, without "jaxrl", or a script that imports jaxrl.parallel and calls
its initialize(). Processes are identified by their rank, from 0: output of rank 1 is prefixed with [1].

When a process dies, fails, or hangs for longer than the heartbeat, all processes are stopped, restarted, and resume from the
run's last checkpoint. Ctrl-C and SIGTERM let all processes save and end; a second Ctrl-C does not wait.

The exit code is 0 on success, 2 for an invalid request, 1 after more faults than --max-restarts allows, and 130, 143 or 129 after
a signal.

try:
  jaxrl launch --processes 2 -- train ppo --env CartPole-v1 --seeds 2 --out runs/two
  jaxrl launch --processes 2 --devices-per-process 2 -- train --resume runs/two
  jaxrl launch --processes 4 --max-restarts 0 -- my_script.py --my-flag 3
"""

EXAMPLE = "jaxrl launch --processes 2 -- train ppo --env CartPole-v1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of ``jaxrl launch``."""

    processes: Count
    """Number of processes to start."""
    devices_per_process: Annotated[Count | None, shown_as("INT", "1 CPU device, or an equal share of the GPUs")] = None
    """Number of GPUs of each process if JAX uses GPUs, else of CPU devices."""
    max_restarts: Count = 3
    """Maximum number of restarts, after faults of any kind."""
    heartbeat: Annotated[float | None, shown_as("SECONDS", "JAXRL_HEARTBEAT, or 30")] = None
    """Time after which a process that hangs, or does not answer the others, is considered lost."""


def main(args: Sequence[str]) -> int:
    """Start and supervise the processes; return the exit code."""
    flags, command = divided(args)
    if flags and not command and not {"-h", "--help"} & set(flags):
        raise ValueError(f"jaxrl launch needs a command after --: {EXAMPLE}")
    options = read_flags(LaunchOptions, flags if flags or command else ["--help"], prog="jaxrl launch", description=HELP)
    from jaxrl.settings.validation import check_count

    processes = check_count("processes", options.processes)
    each = None if options.devices_per_process is None else check_count("devices_per_process", options.devices_per_process)
    check_count("max_restarts", options.max_restarts, at_least=0)
    from jaxrl.runtime.console.streams import screen
    from jaxrl.runtime.distributed.start import check_heartbeat
    from jaxrl.runtime.launcher.assignments import lay_out
    from jaxrl.runtime.launcher.supervisor import LaunchPlan, supervise

    heartbeat, command, layout = check_heartbeat(options.heartbeat), checked(command), lay_out(processes, each)
    shown = screen()

    def show(line: str) -> None:
        shown.write(f"{line}\n")  # at once, as several threads write
        shown.flush()

    show(f"launch: {processes} process{'es' * (processes > 1)}, {layout.shown}: {shlex.join(command)}")
    if layout.advice:
        show(f"launch: {layout.advice}")
    fault = supervise(LaunchPlan(command, layout.variables, options.max_restarts, heartbeat), show)
    return 0 if fault is None else tell(fault, ["jaxrl", "launch", *flags, "--", *command], options.max_restarts)


def divided(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments at the first ``--``."""
    args = [*args]
    at = args.index("--") if "--" in args else len(args)
    return args[:at], args[at + 1 :]


def checked(command: Sequence[str]) -> list[str]:
    """Check the command, and return it as it is passed to all processes at every start: with ``--out`` added if it is missing."""
    from jaxrl.runtime.launcher.process_main import is_script

    word, *rest = command
    if is_script(word):
        if not os.path.isfile(word):
            raise FileNotFoundError(f"script {word!r} does not exist")
        return [word, *rest]
    if word != "train":
        raise ValueError(f"{word!r} cannot be launched: use train or a script (a file that ends in .py), such as {EXAMPLE}")
    from jaxrl.runtime.cli.commands.train import settled

    return [word, *settled(rest)]


def tell(fault: Fault, command: Sequence[str], max_restarts: int) -> int:
    """Report why the processes are not restarted and how to resume; return the exit code."""
    from jaxrl.runtime.cli.main import USAGE_ERROR, complain
    from jaxrl.runtime.launcher.process import Kind
    from jaxrl.runtime.launcher.supervisor import in_words

    said = f", with the message: {fault.said}" if fault.said else ""
    if fault.kind is Kind.REFUSED:
        complain(f"{in_words(fault)}{said}")
        return USAGE_ERROR
    used = f"after {max_restarts} restart{'s' * (max_restarts != 1)}" if max_restarts else "and --max-restarts is 0"
    complain(f"{in_words(fault)} first, {used}{said}. To resume from the last checkpoint: {shlex.join(command)}")
    return 1

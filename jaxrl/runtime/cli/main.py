"""The command line: ``jaxrl COMMAND …``. Dispatches to a command and reports its errors; JAX is imported only if needed."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO, cast

from jaxrl.runtime.console.streams import Screen, discard
from jaxrl.runtime.console.tables import folded, plain_table
from jaxrl.runtime.distributed.cluster import PORT_TAKEN
from jaxrl.runtime.distributed.rendezvous import PortTaken
from jaxrl.runtime.system.disk import check_here
from jaxrl.runtime.training_loop.signals import DEBUG_VARIABLE, leave_while_loading
from jaxrl.settings.aliases import unknown
from jaxrl.version import __version__

if TYPE_CHECKING:
    from jaxrl.runtime.distributed.group import ProcessGroup

BROKEN_PIPE, FAILURE, USAGE_ERROR = 1, 1, 2

RESTARTABLE = {"WorkerFailed", "GroupWorkerFailed", "WorkerLost"}
"""Exceptions that a restart may fix: the request itself was valid. By name, because their modules import JAX."""
TOLD_IN_A_LINE = {
    "ValueError",
    "TypeError",
    "OSError",
    "ImportError",
    "EnvironmentFailed",
    "RunDiverged",
    "NotEnough",
    *RESTARTABLE,
}
"""Exceptions that are reported in one line: those caused by users, their files or environments, not by jaxrl."""

COMMANDS = {
    "train": "train an algorithm on an environment, over any number of seeds",
    "launch": "train in several processes on this machine, and restart them after a fault",
    "search": "search for the settings with the highest return; resumable",
    "sweep": "train a grid of settings and seeds from a file; resumable",
    "status": "show whether a run is running, its progress, workers and messages",
    "es": "evolve parameters that other programs test, from a log of their rewards",
    "collect": "collect a dataset with the policy of a run, for offline learning",
    "data": "describe a dataset: episodes, returns, spaces",
    "plot": "compare learning curves of runs, with intervals over seeds, in one figure",
    "eval": "evaluate trained policies: returns as a table and as JSON",
    "arena": "play trained policies of a game against each other, and rate them",
    "play": "play a board game against a trained policy in the terminal",
    "record": "record a trained policy as a GIF or MP4",
    "envs": "list environments, their spaces and time limits",
    "algos": "list algorithms, or all settings of one",
    "presets": "list presets of settings, and their scores",
    "doctor": "find problems of this installation, and the commands that fix them",
}
"""Each command is a module in ``commands/``, with ``main(args) -> exit code``."""
FOLDERS = {"arena": "games.arena", "play": "games.play", "search": "search.search", "sweep": "search.sweep"}
"""Commands whose modules are in a folder of ``commands/``."""

HELP = f"""\
usage: jaxrl COMMAND …

jaxrl {__version__}: functional reinforcement learning in JAX. An algorithm is a set of pure functions; these commands run it
with progress, logs, learning curves and checkpoints. The same from Python: jaxrl.make_ppo, jaxrl.run.

commands:
{{commands}}
options:
  -h, --help   show this text; for details, see jaxrl COMMAND --help
  --version    show the version

try:
  jaxrl train ppo --env CartPole-v1 --seeds 8          8 seeds in one program, sharded over all cores or GPUs
  jaxrl train ppo --help                               every setting of PPO is a flag
  jaxrl train --resume runs/ppo-CartPole-v1            resume a run that was stopped or killed

Environments are 'name' (gymnax), 'backend:name' such as envpool:Pong-v5, or 'module:function' for a custom one.
{DEBUG_VARIABLE}=1 shows the traceback of an error. JAX_PLATFORMS=cpu disables accelerators. JAXRL_CACHE_DIR is the folder for
compiled programs (default: ~/.cache/jaxrl/xla; empty: no cache).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 for success, 2 for an invalid request, 128 + its number after a signal (Ctrl-C: 130), 1 for other failures.
    """
    return guarded(partial(_dispatch, list(sys.argv[1:] if argv is None else argv)))


def guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit code; an exception is reported as one line on stderr."""
    try:
        return command()
    except KeyboardInterrupt as interrupt:
        if not str(interrupt):  # a run that was stopped has already reported it
            complain("interrupted")
        return 128 + getattr(interrupt, "signal", signal.SIGINT)
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    except Exception as error:
        names = {kind.__name__ for kind in type(error).__mro__}
        if os.environ.get(DEBUG_VARIABLE) or not names & TOLD_IN_A_LINE:
            raise
        complain(said := " ".join(str(error).split()) or type(error).__name__)
        if (group := _group()) is not None:
            group.fail("" if "ProcessFailed" in names else said)
        if isinstance(error, PortTaken):
            return PORT_TAKEN
        return FAILURE if names & RESTARTABLE else USAGE_ERROR


def run_and_exit(command: Callable[[], int] | None = None) -> None:
    """Entry point of a process: run the command line, or another command, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows ? for what it lacks
    warnings.formatwarning = lambda message, *_, **__: f"jaxrl: {message}\n"  # the line of code does not help users
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_while_loading)
    try:
        code = guarded(command) if command else main()
    except SystemExit as end:  # tyro's, after printing help or an error
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if signal.getsignal(signal.SIGINT) is leave_while_loading:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # only Python's finalisation is left
    code = _flushed(code)
    if code >= 128 or (code and _group()):
        # A normal exit would wait for computations on the devices, and JAX's exit handler for the other processes.
        os._exit(code)
    sys.exit(code)


def _group() -> ProcessGroup | None:
    """Return the group of processes that this one has joined, if any."""
    hosts = sys.modules.get("jaxrl.runtime.distributed.group")
    return None if hosts is None or hosts.current().is_alone else hosts.current()


def _flushed(code: int) -> int:
    """Flush stdout and stderr and return the exit code; a failed write changes code 0 to an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            discard(stream)
            is_pipe = isinstance(error, BrokenPipeError)
            if not is_pipe:
                complain(str(error))
            code = code or (BROKEN_PIPE if is_pipe else USAGE_ERROR)
    return code


def complain(message: str) -> None:
    """Print one line on stderr, in red if the terminal supports colour."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=cast(TextIO, Screen(sys.stderr)), highlight=False)
    console.print(Text(f"jaxrl: {message}", style="red"), soft_wrap=True)


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(folded(HELP.format(commands=plain_table(None, [("", *command) for command in COMMANDS.items()]))), end="")
        return 0 if args else USAGE_ERROR
    if args[0] == "--version":
        print(f"jaxrl {__version__}")
        return 0
    if args[0] not in COMMANDS:
        raise unknown("command", args[0], list(COMMANDS))
    if args[0] != "doctor":  # doctor reports this itself
        check_here()
    module = FOLDERS.get(args[0], args[0])
    return importlib.import_module(f"jaxrl.runtime.cli.commands.{module}").main(args[1:])

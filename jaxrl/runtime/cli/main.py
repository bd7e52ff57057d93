"""The command line: ``jaxrl COMMAND …``. Finds the command and words its failures; JAX is imported only by what needs it."""

from __future__ import annotations

import importlib
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


COMMANDS = {
    "train": "train an algorithm on an environment, over any number of seeds",
    "launch": "train in several processes on this machine, and start them again after a fault",
    "sweep": "train a grid of settings and seeds from a file; resumable",
    "plot": "compare learning curves of runs, with intervals over seeds, in one figure",
    "eval": "play what runs have learnt: returns as a table and as JSON",
    "record": "draw a policy at work, as a GIF or MP4",
    "envs": "list environments, their spaces and time limits",
    "algos": "list algorithms, or all settings of one",
    "presets": "list settings to train with, and their scores",
    "doctor": "find what is missing or broken on this machine, and what mends it",
}
"""Each is a file beside this one, with ``main(args) -> exit code``."""

HELP = f"""\
usage: jaxrl COMMAND …

jaxrl {__version__}: functional reinforcement learning in JAX. A learning rule is a set of pure functions; the commands here
run them with progress, logs, learning curves and checkpoints. The same from Python: jaxrl.make_ppo, jaxrl.run.

commands:
{{commands}}
options:
  -h, --help   this text; jaxrl COMMAND --help says more
  --version    the version

try:
  jaxrl train ppo --env CartPole-v1 --seeds 8          8 seeds in one program, sharded over all cores or GPUs
  jaxrl train ppo --help                               every setting of PPO is a flag
  jaxrl train --resume runs/ppo-CartPole-v1            go on where a run was stopped or killed

Environments are 'name' (gymnax), 'backend:name' such as envpool:Pong-v5, or 'module:function' for one of your own.
{DEBUG_VARIABLE}=1 shows where an error comes from. JAX_PLATFORMS=cpu keeps off an accelerator. JAXRL_CACHE_DIR is where compiled
programs are kept (default: ~/.cache/jaxrl/xla; empty: nowhere).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: exit code 0, 2 for a wrong or impossible request, 128 + its number after a signal (Ctrl-C: 130)."""
    return guarded(partial(_dispatch, list(sys.argv[1:] if argv is None else argv)))


def guarded(command: Callable[[], int]) -> int:
    """The exit code of a command; what it raises becomes one line on stderr."""
    try:
        return command()
    except KeyboardInterrupt as interrupt:
        if not str(interrupt):  # a run that was stopped has told its story
            complain("interrupted")
        return 128 + getattr(interrupt, "signal", signal.SIGINT)
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    except _told_in_a_line() as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        complain(said := " ".join(str(error).split()) or type(error).__name__)
        if (group := _group()) is not None:
            group.fail("" if type(error).__name__ == "ProcessFailed" else said)
        if isinstance(error, PortTaken):
            return PORT_TAKEN
        return FAILURE if isinstance(error, _worker_failures()) else USAGE_ERROR


def run_and_exit(command: Callable[[], int] | None = None) -> None:
    """A whole process: of the command line, or of another command."""
    warnings.formatwarning = lambda message, *_, **__: f"jaxrl: {message}\n"  # for readers, who did not write the line of code
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_while_loading)
    try:
        code = guarded(command) if command else main()
    except SystemExit as end:  # tyro's, after it has shown help or what is wrong with a flag
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if signal.getsignal(signal.SIGINT) is leave_while_loading:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left is Python's own end
    code = _flushed(code)
    if code >= 128 or (code and _group()):
        # Python's own way out would wait for what the devices still compute, and JAX's for other processes.
        os._exit(code)
    sys.exit(code)


def _group() -> ProcessGroup | None:
    """The other processes that this one trains with, if it has joined some."""
    hosts = sys.modules.get("jaxrl.runtime.distributed.group")
    return None if hosts is None or hosts.current().is_alone else hosts.current()


def _flushed(code: int) -> int:
    """The exit code once everything is written; output that cannot be is a failure, if there was none before."""
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
    """One line on stderr, red where there is colour."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=cast(TextIO, Screen(sys.stderr)), highlight=False)
    console.print(Text(f"jaxrl: {message}", style="red"), soft_wrap=True)


def _told_in_a_line() -> tuple[type[Exception], ...]:
    """What users, files and environments of theirs can do wrong, and not jaxrl itself."""
    host = sys.modules.get("jaxrl.envs.host")
    run = sys.modules.get("jaxrl.runtime.run")
    diverged = [run.RunDiverged] if run else []
    failed = [host.EnvironmentFailed] if host else []
    return (ValueError, TypeError, OSError, ImportError, *failed, *diverged, *_worker_failures())


def _worker_failures() -> tuple[type[Exception], ...]:
    """Failures that another start may mend: what was asked for can be done."""
    child = sys.modules.get("jaxrl.envs.subprocess.child")
    return (child.WorkerFailed, child.GroupWorkerFailed) if child else ()


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(folded(HELP.format(commands=plain_table(None, [("", *command) for command in COMMANDS.items()]))), end="")
        return 0 if args else USAGE_ERROR
    if args[0] == "--version":
        print(f"jaxrl {__version__}")
        return 0
    if args[0] not in COMMANDS:
        raise unknown("command", args[0], list(COMMANDS))
    if args[0] != "doctor":  # which tells of it among all else
        check_here()
    return importlib.import_module(f"jaxrl.runtime.cli.commands.{args[0]}").main(args[1:])

"""Python processes of our own: told what to do through a connection, and never left behind. Imports no jax."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from jaxrl.interpreter import python_command

GRACE = 5.0
"""Seconds in which processes may end by themselves."""

ENDING = 2.0
"""Seconds that one may live on without a connection, which a Python process drops before its last duties."""


class WorkerFailed(RuntimeError):
    """Worker processes did not start, or more of them failed than may be replaced."""


class RemoteTraceback(Exception):
    """Shown above an error as its cause: where it came up in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Child:
    """A process that runs a module and is told what to do through ``connection``.

    It is started afresh and runs no script of the user's again. It leads a process group of its own, so that Ctrl-C does not
    reach it and all that it starts can be ended with it; and it ends when this process does, by whatever death.
    """

    def __init__(
        self,
        module: str,
        *,
        folders: Iterable[str] = (),
        variables: Mapping[str, str] = {},
        log: Path | None = None,
        output: int | None = None,
    ) -> None:
        """
        Args:
          module: whose ``__main__`` calls ``attend``.
          folders: where it looks for modules last.
          variables: of its environment, besides those of this process's.
          log: where its output goes, at the end of what is there.
          output: where it goes without a log, as the end of a pipe; None: to where this process's goes.

        Raises:
          OSError: too many open files, or processes; the message says how many of them are allowed.
        """
        self._owner = os.getpid()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours, _explaining():
            self.connection, connection = Pipe()
            ours.callback(self.connection.close)
            theirs.callback(connection.close)
            lifeline, self._lifeline = os.pipe()
            ours.callback(os.close, self._lifeline)
            theirs.callback(os.close, lifeline)
            stream = output if log is None else theirs.enter_context(log.open("ab"))
            fds = connection.fileno(), lifeline
            self.process = subprocess.Popen(
                python_command(module, *map(str, fds), folders=folders),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                process_group=0,
                env={**os.environ, **variables},
            )
            ours.pop_all()  # they stay open

    def send(self, message: Any) -> None:
        """Tell it something. Whether it is there still, its answer says."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    @property
    def is_ours(self) -> bool:
        """Whether there is a connection still; not so in a copy of this process, which holds copies of all objects."""
        return os.getpid() == self._owner and not self.connection.closed

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still, as after SIGSTOP; False where the system does not tell."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    @property
    def has_ended(self) -> bool | None:
        """Whether it runs no more, though what it has started may; None where the system does not tell. It is not waited for, so
        its number, and that of its group, is nobody else's yet."""
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # it was waited for
            return True
        except AttributeError:
            return None

    def kill(self) -> None:
        """End it and all that it has started. Until it is waited for, its number is nobody else's."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def how_it_ended(self) -> str:
        """In words, of one whose connection has ended; one that goes on nevertheless is ended."""
        by_itself = self._ends_soon()
        self.kill()
        code = self.process.wait()
        if not by_itself:
            return "ended its connection"
        if code == -signal.SIGKILL:
            return "was killed by SIGKILL (where nobody sent it, the system was out of memory)"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _ends_soon(self) -> bool:
        """Whether it ends by itself, a moment after its connection."""
        late = time.monotonic() + ENDING
        while (has_ended := self.has_ended) is False and time.monotonic() < late:
            time.sleep(0.002)
        return has_ended is not False

    def release(self) -> None:
        """End it, and close what connects it with this process."""
        if not self.is_ours:
            return
        self.kill()
        self.process.wait()
        self.connection.close()
        os.close(self._lifeline)


def end_all(children: Sequence[Child], farewell: Any, grace: float = GRACE) -> None:
    """Tell all to end by themselves, and end those that have not in ``grace`` seconds."""
    children = [child for child in children if child.is_ours]
    try:
        for child in children:
            with contextlib.suppress(OSError):
                child.connection.send(farewell)
        late, pending = time.monotonic() + grace, [child.connection for child in children]
        while pending and (left := late - time.monotonic()) > 0:
            connection: Any
            for connection in wait(pending, left):
                try:
                    connection.recv()
                except (EOFError, OSError):
                    pending.remove(connection)
    finally:
        for child in children:
            child.release()


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OSError(error.errno, f"too many open files to start another process: {limit_of_files()}") from error
        if error.errno == errno.EAGAIN:
            raise OSError(error.errno, "no further process may be started: use fewer workers, or raise ulimit -u") from error
        raise


def limit_of_files() -> str:
    """What to do about too many open files."""
    import resource

    return f"use fewer workers, or raise the limit of {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"


# ---------------------------------------------------------------------------------------------------------- in the other process


def attend(serve: Callable[[Connection], None]) -> None:
    """What the module of a ``Child`` does: serves the one who started it, for as long as that lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that has started this one
    connection, lifeline = Connection(int(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    serve(connection)


def _end_with(lifeline: int) -> None:
    """End this process, and whatever it has started, once the other end of a pipe is closed, by any death.

    The system wakes one that stands still (SIGSTOP) for that: its process group has lost its parent.
    """
    os.read(lifeline, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)

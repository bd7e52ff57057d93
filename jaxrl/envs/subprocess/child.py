"""Child Python processes, controlled through a connection and never left behind. Does not import jax."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, BinaryIO

from jaxrl.envs.subprocess.descendants import VARIABLE, end_marked, is_stopped, new_mark
from jaxrl.envs.subprocess.inbox import CHUNK, Inbox
from jaxrl.interpreter import python_command

GRACE = 5.0
"""Seconds that processes get to end by themselves."""

ENDING = 2.0
"""Seconds that a process may live after its connection closed, which Python closes before it finishes."""


class WorkerFailed(RuntimeError):
    """Error: worker processes did not start, or failed more often than they may be replaced."""


class GroupWorkerFailed(RuntimeError):
    """``WorkerFailed`` in one of several processes that train together. None can save a checkpoint, as the others wait for it."""


class RemoteTraceback(Exception):
    """Traceback of an error in another process, shown as the cause of the error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Child:
    """Process that runs a module and receives calls through ``connection``.

    It is a new interpreter, which does not run the user's script again. It leads its own process group, so that Ctrl-C does not
    reach it. Its descendants end with it, in any group or session. It ends when this process ends, even if that is killed.
    """

    def __init__(
        self, module: str, *, variables: Mapping[str, str] = {}, log: Path | None = None, output: int | None = None
    ) -> None:
        """
        Args:
          module: module whose ``__main__`` calls ``attend``.
          variables: environment variables, in addition to those of this process.
          log: file to which its output is appended. A link of that name is replaced, not followed.
          output: file descriptor for its output if there is no log, such as the end of a pipe. None: the output of this process.

        Raises:
          OSError: too many open files or processes. The message advises on the limit.
        """
        self._owner, self._is_ended = os.getpid(), False
        self.log, self.mark = log, new_mark()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours, _explaining():
            self.connection, connection = Pipe()
            self._inbox = Inbox(self.connection)
            ours.callback(self.connection.close)
            theirs.callback(connection.close)
            lifeline, self._lifeline = os.pipe()
            ours.callback(os.close, self._lifeline)
            theirs.callback(os.close, lifeline)
            stream = output if log is None else theirs.enter_context(open_log(log))
            fds = connection.fileno(), lifeline
            self.process = subprocess.Popen(
                python_command(module, *map(str, fds)),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                process_group=0,
                env={**os.environ, **variables, VARIABLE: self.mark},
            )
            ours.pop_all()  # keep them open

    def send(self, message: Any) -> None:
        """Send a message. Errors of a lost connection are ignored here, as ``receive`` reports them."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self) -> list[Any]:
        """Return the complete messages; see ``Inbox.read``."""
        return self._inbox.read()

    @property
    def has_said(self) -> bool:
        """Return whether there is something to ``receive``, including the end of the connection."""
        return self.connection.poll()

    @property
    def where(self) -> str:
        """End of a message that names its log."""
        return "" if self.log is None else f": its output is in {self.log}"

    def write_log(self, text: str) -> None:
        """Append text to its log, if it has one."""
        append_to_log(self.log, line(text))

    @property
    def is_ours(self) -> bool:
        """Return whether this object is connected. False in a fork of this process, which holds copies of all objects."""
        return os.getpid() == self._owner and not self.connection.closed

    @property
    def is_stopped(self) -> bool:
        """Return whether the process is stopped, as after SIGSTOP; False if the system cannot tell."""
        return is_stopped(self.process.pid)

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended. It is not reaped, so its pid and process group cannot be reused yet."""
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # already reaped
            return True

    def kill(self) -> None:
        """Kill the process and all its descendants. Its pid cannot be reused until it is reaped."""
        kill_all([self])

    def how_it_ended(self, patience: float = ENDING) -> str:
        """Describe how a process ended whose connection is closed. If it is still running after ``patience`` seconds, it is
        killed."""
        deadline = time.monotonic() + patience
        while not (by_itself := self.has_ended) and time.monotonic() < deadline:
            time.sleep(0.002)
        self.kill()
        code = self.process.wait()
        if not by_itself:
            return "closed its connection"
        if code == -signal.SIGKILL:
            return "was killed by SIGKILL (unless a user or program sent it, the system ran out of memory)"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def release(self) -> None:
        """Kill the process and close all connections to it."""
        if not self.is_ours:
            return
        self.kill()
        self.process.wait()
        self.connection.close()
        os.close(self._lifeline)


def kill_all(children: Sequence[Child]) -> None:
    """Kill processes and all their descendants, with one scan of the machine's processes."""
    children = [child for child in children if child.process.returncode is None and not child._is_ended]
    for child in children:
        child._is_ended = True
        for kill in (os.killpg, os.kill):  # the group too: the process may have left it, but not its descendants
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(child.process.pid, signal.SIGKILL)
    if children:
        end_marked([child.mark for child in children])


def end_all(children: Sequence[Child], farewell: Any, grace: float = GRACE) -> None:
    """Ask all processes to end, and kill those that have not ended after ``grace`` seconds."""
    children = [child for child in children if child.is_ours]
    try:
        for child in children:
            with contextlib.suppress(OSError):
                child.connection.send(farewell)
        deadline, pending = time.monotonic() + grace, [child.connection for child in children]
        while pending and (left := deadline - time.monotonic()) > 0:
            connection: Any
            for connection in wait(pending, left):
                with contextlib.suppress(OSError):
                    if os.read(connection.fileno(), CHUNK):  # discard late messages
                        continue
                pending.remove(connection)
    finally:
        kill_all(children)
        for child in children:
            child.release()


def line(text: str) -> bytes:
    """Return text as a line of a log."""
    return f"{text.rstrip()}\n".encode(errors="replace")


def append_to_log(path: Path | None, output: bytes) -> None:
    """Append output to a log, if there is one. Errors of the disk are ignored."""
    if path is not None:
        with contextlib.suppress(OSError), open_log(path) as log:
            log.write(output)


def open_log(path: Path) -> BinaryIO:
    """Open a file for appending. A link or a pipe of that name, which might lead anywhere or wait for a reader, is removed."""
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            path.unlink()
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OSError(error.errno, f"too many open files to start another process: {limit_of_files()}") from error
        if error.errno == errno.EAGAIN:
            raise OSError(error.errno, "no more processes can be started: use fewer workers, or raise ulimit -u") from error
        raise


def limit_of_files() -> str:
    """Return advice about too many open files."""
    import resource

    return f"use fewer workers, or raise the limit of {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"


# ---------------------------------------------------------------------------------------------------------- in the child process


def attend(serve: Callable[[Connection], None]) -> None:
    """Run the main program of a ``Child``: call ``serve``, and end when the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    connection, lifeline = Connection(int(sys.argv[1])), int(sys.argv[2])
    for fd in (connection.fileno(), lifeline):  # otherwise its descendants would keep them open
        os.set_inheritable(fd, False)
    mark = os.environ[VARIABLE]
    threading.Thread(target=_end_with, args=(lifeline, mark), daemon=True).start()
    try:
        serve(connection)
    finally:
        end_marked([mark])  # the daemon thread may die before it does this


def _end_with(lifeline: int, mark: str) -> None:
    """Kill this process and its descendants once the other end of a pipe closes, however the parent ended.

    A stopped process (SIGSTOP) is woken by the system for this, as its process group is orphaned.
    """
    os.read(lifeline, 1)
    end_marked([mark])
    if os.getpgid(0) == os.getpid():  # do not kill a foreign group that it may have joined
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

"""Python processes of our own: told what to do through a connection, and never left behind. Imports no jax."""

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

from jaxrl.envs.subprocess.descendants import VARIABLE, end_marked, new_mark
from jaxrl.envs.subprocess.inbox import CHUNK, Inbox
from jaxrl.interpreter import python_command

GRACE = 5.0
"""Seconds in which processes may end by themselves."""

ENDING = 2.0
"""Seconds that one may live on without a connection, which a Python process drops before its last duties."""


class WorkerFailed(RuntimeError):
    """Worker processes did not start, or more of them failed than may be replaced."""


class GroupWorkerFailed(RuntimeError):
    """The same in one of several processes that train together, none of which can save then: the others wait for this one."""


class RemoteTraceback(Exception):
    """Shown above an error as its cause: where it came up in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Child:
    """A process that runs a module and is told what to do through ``connection``.

    It is started afresh and runs no script of the user's again. It leads a process group of its own, so that Ctrl-C does not
    reach it. What it starts ends with it, in whatever group or session that is; and it ends when this process does, by whatever
    death.
    """

    def __init__(
        self,
        module: str,
        *,
        variables: Mapping[str, str] = {},
        log: Path | None = None,
        output: int | None = None,
    ) -> None:
        """
        Args:
          module: whose ``__main__`` calls ``attend``.
          variables: of its environment, besides those of this process's.
          log: where its output goes, at the end of what is there; never through a link, which makes way.
          output: where it goes without a log, as the end of a pipe; None: to where this process's goes.

        Raises:
          OSError: too many open files, or processes; the message says how many of them are allowed.
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
            ours.pop_all()  # they stay open

    def send(self, message: Any) -> None:
        """Tell it something. Whether it is there still, its answer says."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self) -> list[Any]:
        """The messages that have come whole; waits only where nothing has come.

        Raises:
          EOFError, OSError: the connection has ended.
          Garbled: what has come is not a message.
        """
        return self._inbox.read()

    @property
    def has_said(self) -> bool:
        """Whether there is something to ``receive``, if only its end."""
        return self.connection.poll()

    def write_log(self, text: str) -> None:
        """Add a line, or more, to its log, if it has one."""
        if self.log is not None:
            with contextlib.suppress(OSError), open_log(self.log) as log:
                log.write(f"{text.rstrip()}\n".encode(errors="replace"))

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
        """End it and all that it has started. Until it is waited for, its number is not another's."""
        kill_all([self])

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


def kill_all(children: Sequence[Child]) -> None:
    """End them and all that they have started, by one look at the processes of this machine."""
    children = [child for child in children if child.process.returncode is None and not child._is_ended]
    for child in children:
        child._is_ended = True
        for end in (os.killpg, os.kill):  # it may have left its group, and what it started may be in there
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(child.process.pid, signal.SIGKILL)
    if children:
        end_marked([child.mark for child in children])


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
                with contextlib.suppress(OSError):
                    if os.read(connection.fileno(), CHUNK):  # whatever it says now
                        continue
                pending.remove(connection)
    finally:
        kill_all(children)
        for child in children:
            child.release()


def open_log(path: Path) -> BinaryIO:
    """A file to write to at its end. What is there and is not a file of this name alone makes way: a link might lead anywhere,
    and a pipe waits for a reader."""
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            path.unlink()
    return open(path, "ab", opener=_without_links)


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


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
    for fd in (connection.fileno(), lifeline):  # a program that this process starts would hold them open after its end
        os.set_inheritable(fd, False)
    mark = os.environ[VARIABLE]
    threading.Thread(target=_end_with, args=(lifeline, mark), daemon=True).start()
    try:
        serve(connection)
    finally:
        end_marked([mark])  # the thread ends with this one, done or not


def _end_with(lifeline: int, mark: str) -> None:
    """End this process, and whatever it has started, once the other end of a pipe is closed, by any death.

    The system wakes one that stands still (SIGSTOP) for that: its process group has lost its parent.
    """
    os.read(lifeline, 1)
    end_marked([mark])
    if os.getpgid(0) == os.getpid():  # and not in a group of others, which it may have joined
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

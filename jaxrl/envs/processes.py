"""Host environments in several processes, each of which opens and steps a part of them. Imports no jax, nor do the processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NamedTuple

import numpy as np
import tree
from gymnasium.vector.utils import CloudpickleWrapper

from jaxrl.config import check_count
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.interpreter import python_command
from jaxrl.types import HostStep, OpenFn, PyTree

GRACE = 5.0
"""Seconds in which environments may close by themselves."""


class Worker(NamedTuple):
    """A process and what it holds."""

    process: subprocess.Popen[bytes]
    connection: Connection
    first: int
    last: int
    """Which environments: both of them included."""

    def __str__(self) -> str:
        return f"environment {self.first}" if self.first == self.last else f"environments {self.first} to {self.last}"


class RemoteTraceback(Exception):
    """Shown above an error as its cause: where it came up in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Processes:
    """Environments in worker processes: see ``jaxrl.types.HostEnvs``. One that is not closed ends with the object that holds it.

    They are started afresh and run no script of the user's again, so none needs ``if __name__ == "__main__"``; what a script
    defines is sent to them. Whatever goes wrong in one of them ends them all.
    """

    def __init__(
        self,
        label: str,
        open: OpenFn,
        num_envs: int,
        seed: int,
        first_id: int = 0,
        *,
        num_workers: int,
        timeout: float,
        check: Callable[[Any], np.ndarray] = np.asarray,
        folders: Iterable[str] = (),
    ) -> None:
        """Args:
        label: of the environment, for errors.
        open: opens a part; picklable, or defined in the script that runs.
        num_workers: processes; no more than there are environments.
        timeout: seconds in which a step, or a start, must end.
        check: refuses actions that the environments do not take, and gives an array [num_envs, ...].
        folders: where workers look for modules last.
        """
        self._label, self._timeout, self._check = label, timeout, check
        self._workers: list[Worker] = []
        lifeline, ours = os.pipe()
        self._release = weakref.finalize(self, _end, self._workers, ours, os.getpid())
        try:
            for part in np.array_split(np.arange(check_count("num_envs", num_envs)), num_workers):
                if part.size:
                    self._start(open, (part.size, seed, int(first_id + part[0])), lifeline, folders)
            self._replies("start")
        except BaseException:
            self._kill()
            raise
        finally:
            os.close(lifeline)

    def reset(self) -> PyTree:
        return self._call("reset")

    def step(self, action: Any) -> HostStep:
        result: HostStep = self._call("step", self._check(action))
        return result

    def reset_where(self, mask: np.ndarray) -> PyTree:
        return self._call("reset_where", mask)

    def close(self) -> None:
        self._release()

    def _start(self, open: OpenFn, args: tuple[int, int, int], lifeline: int, folders: Iterable[str]) -> None:
        job: Any = partial(open, *args)
        ours, theirs = Pipe()
        with theirs:
            fds = theirs.fileno(), lifeline
            process = subprocess.Popen(
                python_command("jaxrl.envs.worker", *map(str, fds), folders=folders),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                process_group=0,  # neither does Ctrl-C reach it, nor does anything that it starts outlive it
                env={**os.environ, "JAX_PLATFORMS": "cpu"},  # an environment in JAX must not take the learner's accelerator
            )
        self._workers.append(Worker(process, ours, args[2], args[2] + args[0] - 1))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # told by whoever waits for the reply
            try:
                ours.send(CloudpickleWrapper(job))
            except (TypeError, AttributeError, ValueError) as error:
                raise ValueError(
                    f"{self._label} cannot be sent to other processes ({error}): define it at the top of a module, or leave "
                    "num_workers out"
                ) from error

    def _call(self, method: str, *batches: np.ndarray) -> Any:
        """What the environments answer, put together."""
        if not self._workers:
            raise RuntimeError(f"{self._label}: these environments are closed; open() gives new ones")
        try:
            for worker in self._workers:
                rows = slice(worker.first - self._workers[0].first, worker.last + 1 - self._workers[0].first)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    worker.connection.send((method, tuple(batch[rows] for batch in batches)))
            parts = self._replies(method)
        except BaseException:  # Ctrl-C too: rows that were asked for must not be taken for the next
            self._kill()
            raise
        return tree.map_structure(lambda *x: np.concatenate(x), *parts) if parts[1:] else parts[0]

    def _replies(self, method: str) -> list[Any]:
        """In the workers' order, as they come."""
        late, replies = time.monotonic() + self._timeout, {}
        pending: dict[Any, Worker] = {worker.connection: worker for worker in self._workers}
        while pending:
            ready = wait([*pending], max(0.0, late - time.monotonic()))
            if not ready:
                stuck = ", ".join(map(str, pending.values()))
                raise TimeoutError(
                    f"{self._label}: {method} of {stuck} did not end in {self._timeout:g} s, and was ended with its process: it "
                    "hangs, or needs a larger worker_timeout"
                )
            connection: Any
            for connection in ready:
                worker = pending.pop(connection)
                try:
                    good, value = connection.recv()
                except (EOFError, OSError):
                    raise ChildProcessError(f"{self._label}: {_how_it_ended(worker, method)}") from None
                if not good:
                    raise EnvironmentFailed(value[0]) from RemoteTraceback(value[1])
                replies[worker.first] = value
        return [replies[worker.first] for worker in self._workers]

    def _kill(self) -> None:
        for worker in self._workers:
            _signal(worker)
        self._release()


def _how_it_ended(worker: Worker, method: str) -> str:
    _signal(worker)  # it may have closed the pipe and go on
    code = worker.process.wait()
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the process of {worker} {how} during {method}"


def _signal(worker: Worker) -> None:
    """Kill a worker and all that it has started. Until it is waited for, its number is nobody else's."""
    if worker.process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)


def _end(workers: list[Worker], lifeline: int, owner: int) -> None:
    """Let the environments close, and see to it that no process is left."""
    if os.getpid() != owner:
        return  # a copy of this process, which holds copies of all objects
    try:
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.connection.send(("close", ()))
        late, pending = time.monotonic() + GRACE, [worker.connection for worker in workers]
        while pending and (left := late - time.monotonic()) > 0:
            connection: Any
            for connection in wait(pending, left):
                try:
                    connection.recv()
                except (EOFError, OSError):
                    pending.remove(connection)
    finally:
        os.close(lifeline)
        for worker in workers:
            _signal(worker)
            worker.process.wait()
            worker.connection.close()
        workers.clear()

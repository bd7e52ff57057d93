"""Host environments in several processes, each of which opens and steps a part of them. Imports no jax, nor do the processes."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np
import tree
from gymnasium.vector.utils import CloudpickleWrapper

from jaxrl.config import check_count
from jaxrl.envs.child import Child, end_all
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.types import HostStep, OpenFn, PyTree

FAREWELL = ("close", ())
"""Lets the environments close."""


class Worker(NamedTuple):
    """A process and what it holds."""

    child: Child
    first: int
    last: int
    """Which environments: both of them included."""

    def __str__(self) -> str:
        return f"environment {self.first}" if self.first == self.last else f"environments {self.first} to {self.last}"

    def ask(self, method: str, *batches: np.ndarray) -> None:
        self.child.send((method, batches))


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
        check: Callable[[Any, int], np.ndarray] = lambda action, num_envs: np.asarray(action),
        folders: Iterable[str] = (),
    ) -> None:
        """Args:
        label: of the environment, for errors.
        open: opens a part; picklable, or defined in the script that runs.
        num_workers: processes; no more than there are environments.
        timeout: seconds in which a step, or a start, must end.
        check: (action, num_envs) -> array [num_envs, ...]; refuses actions that the environments do not take.
        folders: where workers look for modules last.
        """
        self._label, self._timeout, self._check = label, timeout, check
        self._workers: list[Worker] = []
        self._sent: dict[Any, tuple[Worker, float]] = {}
        """By their connections: processes that step in the background, and when they will be late; in the order of sending."""
        self._release = weakref.finalize(self, _end, self._workers)
        try:
            for part in np.array_split(np.arange(check_count("num_envs", num_envs)), num_workers):
                if part.size:
                    self._start(open, (part.size, seed, int(first_id + part[0])), folders)
            self._replies("start")
        except BaseException:
            self._kill()
            raise

    def reset(self) -> PyTree:
        return self._call("reset")

    def step(self, action: Any) -> HostStep:
        result: HostStep = self._call("step", self._check(action, self._num_envs()))
        return result

    def send(self, action: Any, env_id: np.ndarray | None = None) -> None:
        """Begin a row of all environments, or of one process's, which are those that ``recv`` gives together."""
        num_envs = self._num_envs()
        workers = self._workers if env_id is None else [each for each in self._workers if self._rows(each).start == env_id[0]]
        action = self._check(action, num_envs if env_id is None else len(env_id))
        start = 0 if env_id is None else int(env_id[0])
        with self._killing():
            for worker in workers:
                rows = self._rows(worker)
                worker.ask("step", action[rows.start - start : rows.stop - start])
                self._sent[worker.child.connection] = (worker, time.monotonic() + self._timeout)

    def recv(self) -> tuple[np.ndarray, HostStep]:
        """The rows of one process: of those that are done the one to which was sent first."""
        self._num_envs()
        if not self._sent:
            raise RuntimeError(f"{self._label}: send() actions before recv()")
        with self._killing():
            oldest, late = next(iter(self._sent.values()))
            ready = wait([*self._sent], max(0.0, late - time.monotonic()))
            if not ready or (oldest.child.connection not in ready and time.monotonic() > late):
                raise self._late("step", [oldest])
            worker, _ = next(sent for connection, sent in self._sent.items() if connection in ready)
            del self._sent[worker.child.connection]
            rows = self._rows(worker)
            return np.arange(rows.start, rows.stop, dtype=np.int32), self._answer(worker, "step")

    def reset_where(self, mask: np.ndarray) -> PyTree:
        return self._call("reset_where", mask)

    def close(self) -> None:
        self._release()

    def _start(self, open: OpenFn, args: tuple[int, int, int], folders: Iterable[str]) -> None:
        job: Any = partial(open, *args)
        # An environment in JAX must not take the learner's accelerator.
        child = Child("jaxrl.envs.worker", folders=folders, variables={"JAX_PLATFORMS": "cpu"})
        self._workers.append(Worker(child, args[2], args[2] + args[0] - 1))
        try:
            child.send(CloudpickleWrapper(job))
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{self._label} cannot be sent to other processes ({error}): define it at the top of a module, or leave "
                "num_workers out"
            ) from error

    def _call(self, method: str, *batches: np.ndarray) -> Any:
        """What the environments answer, put together."""
        self._num_envs()
        with self._killing():
            for worker in self._workers:
                worker.ask(method, *(batch[self._rows(worker)] for batch in batches))
            parts = self._replies(method)
        return tree.map_structure(lambda *x: np.concatenate(x), *parts) if parts[1:] else parts[0]

    def _num_envs(self) -> int:
        if not self._workers:
            raise RuntimeError(f"{self._label}: these environments are closed; open() gives new ones")
        return self._workers[-1].last + 1 - self._workers[0].first

    def _rows(self, worker: Worker) -> slice:
        """Of a batch, those of its environments."""
        first = self._workers[0].first
        return slice(worker.first - first, worker.last + 1 - first)

    @contextlib.contextmanager
    def _killing(self) -> Iterator[None]:
        """Whatever goes wrong ends all processes; Ctrl-C too: rows that were asked for must not be taken for the next."""
        try:
            yield
        except BaseException:
            self._kill()
            raise

    def _replies(self, method: str) -> list[Any]:
        """In the workers' order, as they come."""
        late, replies = time.monotonic() + self._timeout, {}
        pending: dict[Any, Worker] = {worker.child.connection: worker for worker in self._workers}
        while pending:
            ready = wait([*pending], max(0.0, late - time.monotonic()))
            if not ready:
                raise self._late(method, pending.values())
            for connection in ready:
                worker = pending.pop(connection)
                replies[worker.first] = self._answer(worker, method)
        return [replies[worker.first] for worker in self._workers]

    def _answer(self, worker: Worker, method: str) -> Any:
        """Of a process that has one."""
        try:
            good, value = worker.child.connection.recv()
        except (EOFError, OSError):
            how = worker.child.how_it_ended()
            raise ChildProcessError(f"{self._label}: the process of {worker} {how} during {method}") from None
        if not good:
            raise EnvironmentFailed(value[0]) from RemoteTraceback(value[1])
        return value

    def _late(self, method: str, workers: Iterable[Worker]) -> TimeoutError:
        stuck = ", ".join(map(str, workers))
        return TimeoutError(
            f"{self._label}: {method} of {stuck} did not end in {self._timeout:g} s, and was ended with its process: it hangs, "
            "or needs a larger worker_timeout"
        )

    def _kill(self) -> None:
        for worker in self._workers:
            worker.child.kill()
        self._release()


def _end(workers: list[Worker]) -> None:
    """Let the environments close, and see to it that no process is left."""
    end_all([worker.child for worker in workers], FAREWELL)
    workers.clear()

"""A part of a batch of environments, and the worker process that holds it now. Imports no jax."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tree
from gymnasium.vector.utils import CloudpickleWrapper

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.subprocess.child import Child, RemoteTraceback
from jaxrl.envs.subprocess.inbox import Garbled
from jaxrl.envs.subprocess.shared_rows import SharedRows, example_of, put
from jaxrl.envs.subprocess.worker import FAILED, GIVEN, SHARE, SHARED
from jaxrl.types import HostStep, OpenFn, PyTree


class Part:
    """Some environments of a batch. One thing at a time is asked of them: it is done where ``asked`` is empty again."""

    def __init__(self, label: str, open: OpenFn, num_envs: int, seed: int, first: int, log_folder: Path | None) -> None:
        """Starts a process, which opens the environments: ``seed`` and their numbers, from ``first`` on, fix their streams.

        Raises:
          ValueError: they cannot be sent.
          OSError: too many open files, or processes.
        """
        self._label, self._open, self._num_envs, self._seed = label, open, num_envs, seed
        self.first, self.last = first, first + num_envs - 1
        """Which environments: both of them included."""
        self._log = None if log_folder is None else log_folder / f"environments-{self.first}-{self.last}.log"
        self.restarts, self.begun_anew = 0, False
        """How often its process was replaced; and whether it was while it did what was asked for last, which is then the start of
        new episodes."""
        self.asked, self.answer = "start", None
        """What is asked for, and what came of what was; in memory that the next row goes to, unless ``_is_own``."""
        self._is_own = True
        self._blank: HostStep | None = None
        self._example: PyTree | None = None
        """Of a row, once one is known: its zeros, but for observations; and what ``example_of`` says."""
        self._action: Any = None
        """Until then, that of the row which is asked for."""
        self._to_do: list[tuple[str, tuple[Any, ...]]]
        self.since: float
        """What the process is at and is told after that, until there is what was asked for; and since when it is at it."""
        self._start()

    def __str__(self) -> str:
        return f"environment {self.first}" if self.first == self.last else f"environments {self.first} to {self.last}"

    @property
    def doing(self) -> str:
        """What its process is at."""
        return self._to_do[0][0]

    def ask(self, method: str, *arguments: np.ndarray) -> None:
        """Have the environments do something; what came of it, ``hear`` takes in."""
        self.asked, self._to_do = method, [(method, arguments)]
        self.begun_anew = False
        if method == "step" and self._blank is None:
            self._action = arguments[0].copy()
        self._tell()

    def hear(self) -> None:
        """Take in what has come of what the process says, which may be a part of it.

        Raises:
          EnvironmentFailed: it raised.
          ChildProcessError: it has ended, or said something that is not an answer.
        """
        try:
            said = self.child.receive()
        except (EOFError, OSError):
            raise self.failure(self.child.how_it_ended()) from None
        except Garbled as error:
            raise self.failure(str(error)) from None
        for answer in said:
            if not self._to_do:
                return  # more than was asked for
            if not (isinstance(answer, tuple) and len(answer) == 2 and answer[0] in (GIVEN, SHARED, FAILED)):
                raise self.failure(str(Garbled()))
            self._take(*answer)

    def _take(self, kind: str, value: Any) -> None:
        """An answer to the first of what is to do."""
        (method, _), *self._to_do = self._to_do
        if kind == FAILED:
            message, trace = value
            self.child.write_log(trace)
            raise EnvironmentFailed(f"{message}{self._where}") from RemoteTraceback(trace)
        self._is_own = kind == GIVEN
        if not self._is_own:
            assert self._shared is not None
            value = self._shared.row if method == "step" else self._shared.row.obs
        if method == "step" and self._blank is None and isinstance(value, HostStep):
            self._example = example_of(self._action, value)
            self._blank = tree.map_structure(np.zeros_like, value._replace(obs=()))
        if self._to_do:
            return self._tell()
        if (self.asked, method) == ("step", "reset"):  # the row in which the process before was lost
            assert self._blank is not None
            value = tree.map_structure(np.array, self._blank)._replace(obs=value)
        self.asked, self.answer = "", value

    def own_answer(self) -> Any:
        """``answer``, in arrays that nothing writes into any more."""
        return self.answer if self._is_own else tree.map_structure(np.array, self.answer)

    def failure(self, how: str) -> ChildProcessError:
        """The error for a process that is lost."""
        return ChildProcessError(f"{self._label}: the process of {self} {how} during {self.doing}{self._where}")

    @property
    def _where(self) -> str:
        """The place of its output, at the end of a message."""
        return "" if self._log is None else f": its output is in {self._log}"

    def restart(self) -> None:
        """Another process in the place of this one, which has other streams and new episodes, as what is asked for comes to."""
        self.child.release()
        self.restarts, self.begun_anew = self.restarts + 1, True
        self._start()
        if self.asked == "step" and self._blank is None:  # a row must be seen, before one can be made up
            self._to_do += [("reset", ()), ("step", (self._action,))]
        self._to_do.append(("reset", ()))

    def _start(self) -> None:
        seed = self._seed
        if self.restarts:
            seed = int(np.random.SeedSequence([self._seed, self.first, self.restarts]).generate_state(1)[0] >> 1)
        job: Any = partial(self._open, self._num_envs, seed, self.first)
        # An environment in JAX must not take the learner's accelerator.
        variables = {"JAX_PLATFORMS": "cpu"} | ({} if self._log is None else {"PYTHONFAULTHANDLER": "1"})
        self.child = Child("jaxrl.envs.subprocess.worker", variables=variables, log=self._log)
        self._shared: SharedRows | None = None
        self._to_do, self.since = [("start", ())], time.monotonic()
        try:
            self.child.send(CloudpickleWrapper(job))
        except BaseException as error:
            self.child.release()
            if not isinstance(error, TypeError | AttributeError | ValueError):
                raise
            raise ValueError(
                f"{self._label} cannot be sent to other processes ({error}): define it at the top of a module, or leave "
                "num_workers out"
            ) from error

    def _tell(self) -> None:
        method, arguments = self._to_do[0]
        self.since = time.monotonic()
        if method == "step":
            if self._shared is None and self._example is not None:
                self._shared = SharedRows(self._example, self._num_envs)
                self._shared.give(self.child, SHARE)
            if self._shared is not None and put(self._shared.action, arguments[0]):
                arguments = ()
        self.child.send((method, arguments))

"""Part of a batch of environments, and the worker process that currently holds it. Does not import jax."""

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
    """Some environments of a batch. They serve one request at a time; it is done when ``asked`` is empty again."""

    def __init__(self, label: str, open: OpenFn, num_envs: int, seed: int, first: int, log_folder: Path | None) -> None:
        """Start a process that opens the environments. ``seed`` and their indices, from ``first``, determine their streams."""
        self._label, self._open, self._num_envs, self._seed = label, open, num_envs, seed
        self.first, self.last = first, first + num_envs - 1
        """Indices of the first and the last environment, inclusive."""
        self.log = None if log_folder is None else log_folder / f"environments-{self.first}-{self.last}.log"
        self.restarts, self.begun_anew = 0, False
        """Number of times the process was replaced; and whether that happened during the last request, whose result then starts
        new episodes."""
        self.asked, self.answer = "start", None
        """Method of the current request, and result of the last one. Unless ``_is_own``, the next row overwrites the result."""
        self._is_own = True
        self._blank: HostStep | None = None
        self._example: PyTree | None = None
        """Known from the first row on: a row of zeros without observations; and the result of ``example_of``."""
        self._action: Any = None
        """Action of the requested row, kept until the first row is known."""
        self._to_do: list[tuple[str, tuple[Any, ...]]]
        self.since: float
        """Calls that remain for the current request, the one in progress first; and the time at which that one was sent."""
        self._start()

    def __str__(self) -> str:
        return f"environment {self.first}" if self.first == self.last else f"environments {self.first} to {self.last}"

    @property
    def envs(self) -> tuple[int, int]:
        """Indices of the first and the last environment, inclusive."""
        return self.first, self.last

    @property
    def doing(self) -> str:
        """Method that the process currently executes."""
        return self._to_do[0][0]

    def ask(self, method: str, *arguments: np.ndarray) -> None:
        """Request a method of the environments. ``hear`` receives the result."""
        self.asked, self._to_do = method, [(method, arguments)]
        self.begun_anew = False
        if method == "step" and self._blank is None:
            self._action = arguments[0].copy()
        self._tell()

    def hear(self) -> None:
        """Receive what has arrived from the process, possibly a part of a message. Raise EnvironmentFailed if an environment
        raised, or ChildProcessError if the process ended, or sent something that is not an answer."""
        try:
            answers = self.child.receive()
        except (EOFError, OSError):
            raise self.failure(self.child.how_it_ended()) from None
        except Garbled as error:
            raise self.failure(str(error)) from None
        for answer in answers:
            if not self._to_do:
                return  # ignore unrequested answers
            if not (isinstance(answer, tuple) and len(answer) == 2 and answer[0] in (GIVEN, SHARED, FAILED)):
                raise self.failure(str(Garbled()))
            self._take(*answer)

    def _take(self, kind: str, value: Any) -> None:
        """Handle an answer to the call in progress."""
        (method, _), *self._to_do = self._to_do
        if kind == FAILED:
            message, trace = value
            self.child.write_log(trace)
            raise EnvironmentFailed(f"{message}{self.child.where}") from RemoteTraceback(trace)
        self._is_own = kind == GIVEN
        if not self._is_own:
            assert self._shared is not None
            value = self._shared.row if method == "step" else self._shared.row.obs
        if method == "step" and self._blank is None and isinstance(value, HostStep):
            self._example = example_of(self._action, value)
            self._blank = tree.map_structure(np.zeros_like, value._replace(obs=()))
        if self._to_do:
            return self._tell()
        if (self.asked, method) == ("step", "reset"):  # the previous process was lost during this row
            assert self._blank is not None
            value = tree.map_structure(np.array, self._blank)._replace(obs=value)
        self.asked, self.answer = "", value

    def own_answer(self) -> Any:
        """Return ``answer`` in arrays that no later row overwrites."""
        return self.answer if self._is_own else tree.map_structure(np.array, self.answer)

    def failure(self, how: str) -> ChildProcessError:
        """Return the error for a lost process."""
        return ChildProcessError(f"{self._label}: the process of {self} {how} during {self.doing}{self.child.where}")

    def restart(self) -> None:
        """Replace the process. Its environments get new random streams, and the current request results in new episodes."""
        self.child.release()
        self.restarts, self.begun_anew = self.restarts + 1, True
        self._start()
        if self.asked == "step" and self._blank is None:  # take a real step first: a made-up row needs its shapes
            self._to_do += [("reset", ()), ("step", (self._action,))]
        self._to_do.append(("reset", ()))

    def _start(self) -> None:
        seed = self._seed
        if self.restarts:
            seed = int(np.random.SeedSequence([self._seed, self.first, self.restarts]).generate_state(1)[0] >> 1)
        job: Any = partial(self._open, self._num_envs, seed, self.first)
        # Environments written in JAX must not claim the learner's accelerator.
        variables = {"JAX_PLATFORMS": "cpu"} | ({} if self.log is None else {"PYTHONFAULTHANDLER": "1"})
        self.child = Child("jaxrl.envs.subprocess.worker", variables=variables, log=self.log)
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

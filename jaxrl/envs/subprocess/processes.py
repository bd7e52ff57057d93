"""Host environments in several processes. Each process opens and steps a part of them, without importing jax."""

from __future__ import annotations

import contextlib
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import tree

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.subprocess.child import end_all, kill_all
from jaxrl.envs.subprocess.shard import Part
from jaxrl.envs.subprocess.worker import CLOSE
from jaxrl.settings.validation import check_count
from jaxrl.types import HostStep, OpenFn, PyTree

LOOK = 1.0
"""Seconds between checks of silent processes. A process that is stopped in two checks in a row is lost."""


class WorkerRestarted(RuntimeWarning):
    """Warning: a process with environments was lost and replaced."""


class Processes:
    """Environments in worker processes: see ``jaxrl.types.HostEnvs``. The processes end with this object if it is not closed.

    Workers are new interpreters that do not run the user's script, so a script needs no ``if __name__ == "__main__"``; what it
    defines is pickled and sent. Actions, observations, rewards, flags and info are exchanged through shared memory, as long as
    they are arrays of the same shapes and dtypes as in the first row. Other values are pickled.

    By default, a failure of one worker ends all. With ``max_restarts``, a process that raises, ends, is killed, hangs or is
    stopped is replaced with a ``WorkerRestarted`` warning, and the others continue. For its environments, that row starts new
    episodes, as after an end that the previous row does not report (``begun_anew``). Failures before the first ``reset`` has
    returned are not retried.
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
        max_restarts: int = 0,
        log_folder: Path | None = None,
    ) -> None:
        """Args:
        label: name of the environment, for errors.
        open: opens a part of the environments; picklable, or defined in the main script.
        num_workers: number of processes, at most the number of environments.
        timeout: seconds that a step, or a start, may take.
        check: (action, num_envs) -> array [num_envs, ...]; raises for invalid actions.
        max_restarts: how often each process may be replaced. After a restart, (seed, index of its first environment, number of
          the restart) determine the random streams.
        log_folder: folder with one output file per process, which also gets the traceback of a crash. None: the processes print
          to the output of this process.
        """
        self._label, self._timeout, self._check = label, timeout, check
        num_workers = check_count("num_workers", num_workers)
        self._max_restarts = check_count("max_restarts", max_restarts, at_least=0)
        self._parts: list[Part] = []
        self._sent: list[Part] = []
        """Parts that step in the background, in the order of sending."""
        self._begun, self._looked, self._stopped = False, 0.0, set[Part]()
        """``reset`` has returned; time of the last check of silent processes; parts that were stopped then."""
        self._release = weakref.finalize(self, _end, self._parts)
        if log_folder is not None:
            log_folder.mkdir(parents=True, exist_ok=True)
        with self._killing():
            for part in np.array_split(first_id + np.arange(check_count("num_envs", num_envs)), num_workers):
                if part.size:
                    self._parts.append(Part(label, open, part.size, seed, int(part[0]), log_folder))
            self._hear_all()

    @property
    def restarts(self) -> list[int]:
        """Number of times each process was replaced."""
        return [part.restarts for part in self._parts]

    @property
    def parts(self) -> list[Part]:
        """The parts of the environments, each with its process."""
        return self._parts

    def begun_anew(self) -> np.ndarray:
        """See ``jaxrl.types.HostEnvs``."""
        return np.repeat([part.begun_anew for part in self._parts], [part.last + 1 - part.first for part in self._parts])

    def reset(self) -> PyTree:
        obs, self._begun = self._call("reset"), True
        for part in self._parts:
            part.begun_anew = False
        return obs

    def step(self, action: Any) -> HostStep:
        self.send(action)
        return self.recv_all()

    def send(self, action: Any, env_id: np.ndarray | None = None) -> None:
        """Start a step of all environments, or of those of one process, as ``recv`` returns them."""
        num_envs, parts, start = self._num_envs(), self._parts, 0
        if env_id is not None:
            num_envs, start = len(env_id), int(env_id[0])
            parts = [part for part in parts if self._rows(part).start == start]
        action = self._check(action, num_envs)
        with self._killing():
            for part in parts:
                rows = self._rows(part)
                part.ask("step", action[rows.start - start : rows.stop - start])
                self._sent.append(part)

    def recv(self) -> tuple[np.ndarray, HostStep]:
        """Return the rows of one process: among the finished ones, the one that was sent to first."""
        self._num_envs()
        if not self._sent:
            raise RuntimeError(f"{self._label}: send() actions before recv()")
        with self._killing():
            while not (done := [part for part in self._sent if not part.asked]):
                self._hear()
        self._sent.remove(done[0])
        rows = self._rows(done[0])
        return np.arange(rows.start, rows.stop, dtype=np.int32), done[0].own_answer()

    def recv_all(self) -> HostStep:
        """Return the row of all environments. Actions must have been sent to all of them."""
        self._num_envs()
        with self._killing():
            self._hear_all()
        self._sent.clear()
        return self._joined()

    def reset_where(self, mask: np.ndarray) -> PyTree:
        return self._call("reset_where", mask)

    def close(self) -> None:
        self._release()

    def _call(self, method: str, *batches: np.ndarray) -> Any:
        """Call a method of all environments, and return the concatenated results in new arrays."""
        self._num_envs()
        with self._killing():
            for part in self._parts:
                part.ask(method, *(batch[self._rows(part)] for batch in batches))
            self._hear_all()
        return self._joined()

    def _joined(self) -> Any:
        if not self._parts[1:]:
            return self._parts[0].own_answer()
        return tree.map_structure(lambda *x: np.concatenate(x), *[part.answer for part in self._parts])

    def _num_envs(self) -> int:
        if not self._parts:
            raise RuntimeError(f"{self._label}: these environments are closed; open() gives new ones")
        return self._parts[-1].last + 1 - self._parts[0].first

    def _rows(self, part: Part) -> slice:
        first = self._parts[0].first
        return slice(part.first - first, part.last + 1 - first)

    @contextlib.contextmanager
    def _killing(self) -> Iterator[None]:
        """Kill all processes on any exception, even Ctrl-C: pending rows must not be mistaken for the results of later calls."""
        try:
            yield
        except BaseException:
            kill_all([part.child for part in self._parts])
            self._release()
            raise

    def _hear_all(self) -> None:
        """Receive until all requests are done."""
        while any(part.asked for part in self._parts):
            self._hear()

    def _hear(self) -> None:
        """Wait for messages, at most ``LOOK`` seconds, and handle processes that failed or timed out."""
        asked: dict[Any, Part] = {part.child.connection: part for part in self._parts if part.asked}
        start = time.monotonic()
        readable = wait([*asked], max(0.0, min(LOOK, min(part.since for part in asked.values()) + self._timeout - start)))
        if (suspended := time.monotonic() - start - LOOK) > LOOK:  # this process was suspended, and perhaps the others as well
            for part in asked.values():
                part.since += suspended
        for connection in readable:
            part = asked[connection]
            try:
                part.hear()
            except (EnvironmentFailed, ChildProcessError) as error:
                self._replace(part, error)
        clock = time.monotonic()
        late = [each for each in asked.values() if each.asked and clock - each.since > self._timeout and not each.child.has_said]
        for part in late:
            self._replace(part, self._late([part] if self._may_replace(part) else late))
        if clock - self._looked >= LOOK:
            self._look(clock)

    def _look(self, clock: float) -> None:
        """Handle processes that ended but whose connection others hold open, and processes stopped in two checks in a row."""
        for part in self._parts:
            if part.asked and part.child.has_ended and not part.child.has_said:
                self._replace(part, part.failure(part.child.how_it_ended()))
        stopped = {part for part in self._parts if part.asked and part.child.is_stopped} if self._max_restarts else set()
        lost, self._stopped, self._looked = stopped & self._stopped, stopped - self._stopped, clock
        for part in sorted(lost, key=lambda part: part.first):
            self._replace(part, part.failure("was stopped (SIGSTOP)"))

    def _may_replace(self, part: Part) -> bool:
        return self._begun and part.restarts < self._max_restarts

    def _replace(self, part: Part, error: Exception) -> None:
        """Replace a lost process, unless it has been replaced too often."""
        if not self._may_replace(part):
            raise error
        part.restart()
        reason, verb = str(error), "begins" if part.first == part.last else "begin"
        reason = reason if reason.startswith(self._label) else f"{self._label}: {reason}"
        times = f"restart {part.restarts} of {self._max_restarts}"
        cause = "" if error.__cause__ is None else str(error.__cause__)
        warnings.warn(f"{reason}; {part} {verb} new episodes in a new process ({times}){cause}", WorkerRestarted, stacklevel=2)

    def _late(self, parts: Sequence[Part]) -> TimeoutError:
        stuck = ", ".join(map(str, parts))
        return TimeoutError(
            f"{self._label}: {parts[0].doing} of {stuck} did not finish in {self._timeout:g} s, and its process was killed: it "
            "hangs, or needs a larger worker_timeout"
        )


def _end(parts: list[Part]) -> None:
    """Close the environments and make sure that no process is left."""
    end_all([part.child for part in parts], (CLOSE, ()))
    parts.clear()

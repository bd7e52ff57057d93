"""Host environments in several processes, each of which opens and steps a part of them. Imports no jax, nor do the processes."""

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
"""Seconds between two looks at processes that say nothing. One that stands still in two of them is lost."""


class WorkerRestarted(RuntimeWarning):
    """A process with environments was lost, and another one has taken its place."""


class Processes:
    """Environments in worker processes: see ``jaxrl.types.HostEnvs``. One that is not closed ends with the object that holds it.

    They are started afresh and run no script of the user's again, so none needs ``if __name__ == "__main__"``; what a script
    defines is sent to them. Observations, rewards, flags and info come back through memory that both sides share, and actions
    get there so, as long as they are arrays of the same shapes and types as in the first row; what is not is pickled.

    Whatever goes wrong in one of them ends them all, unless ``max_restarts`` says otherwise. Then a process that raises, ends, is
    killed, hangs or is stopped is replaced, and a ``WorkerRestarted`` warning says so; the others go on. The row in which that
    happened is, for its environments, the first of new episodes, as after an end that the row before does not have
    (``begun_anew``). What fails before the first ``reset`` has answered is not tried again.
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
        label: of the environment, for errors.
        open: opens a part; picklable, or defined in the script that runs.
        num_workers: processes; no more than there are environments.
        timeout: seconds in which a step, or a start, must end.
        check: (action, num_envs) -> array [num_envs, ...]; refuses actions that the environments do not take.
        max_restarts: how often each of the processes may be replaced. The streams of the environments are then fixed by (seed,
          number of its first environment, restart).
        log_folder: where what they print goes, each to a file of its own, with the traceback of one that crashes; None: to
          where this process's goes.
        """
        self._label, self._timeout, self._check = label, timeout, check
        self._max_restarts = check_count("max_restarts", max_restarts, at_least=0)
        self._parts: list[Part] = []
        self._sent: list[Part] = []
        """Those that step in the background, in the order of sending."""
        self._begun, self._looked, self._stopped = False, 0.0, set[Part]()
        """Whether ``reset`` has answered; when processes that say nothing were looked at, and which of them stood still then."""
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
        """How often each of the processes was replaced."""
        return [part.restarts for part in self._parts]

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
        """Begin a row of all environments, or of one process's, which are those that ``recv`` gives together."""
        num_envs = self._num_envs()
        parts = self._parts if env_id is None else [each for each in self._parts if self._rows(each).start == env_id[0]]
        action = self._check(action, num_envs if env_id is None else len(env_id))
        start = 0 if env_id is None else int(env_id[0])
        with self._killing():
            for part in parts:
                rows = self._rows(part)
                part.ask("step", action[rows.start - start : rows.stop - start])
                self._sent.append(part)

    def recv(self) -> tuple[np.ndarray, HostStep]:
        """The rows of one process: of those that are done the one to which was sent first."""
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
        """The row of all environments, to which was sent."""
        self._num_envs()
        with self._killing():
            self._hear_all()
        self._sent.clear()
        row: HostStep = self._joined()
        return row

    def reset_where(self, mask: np.ndarray) -> PyTree:
        return self._call("reset_where", mask)

    def close(self) -> None:
        self._release()

    def _call(self, method: str, *batches: np.ndarray) -> Any:
        """What the environments answer, put together."""
        self._num_envs()
        with self._killing():
            for part in self._parts:
                part.ask(method, *(batch[self._rows(part)] for batch in batches))
            self._hear_all()
        return self._joined()

    def _joined(self) -> Any:
        """What came of what was asked of all, in arrays of its own."""
        if not self._parts[1:]:
            return self._parts[0].own_answer()
        return tree.map_structure(lambda *x: np.concatenate(x), *[part.answer for part in self._parts])

    def _num_envs(self) -> int:
        if not self._parts:
            raise RuntimeError(f"{self._label}: these environments are closed; open() gives new ones")
        return self._parts[-1].last + 1 - self._parts[0].first

    def _rows(self, part: Part) -> slice:
        """Of a batch, those of its environments."""
        first = self._parts[0].first
        return slice(part.first - first, part.last + 1 - first)

    @contextlib.contextmanager
    def _killing(self) -> Iterator[None]:
        """Whatever goes wrong ends all processes; Ctrl-C too: rows that were asked for must not be taken for the next."""
        try:
            yield
        except BaseException:
            kill_all([part.child for part in self._parts])
            self._release()
            raise

    def _hear_all(self) -> None:
        """Until all that was asked is done."""
        while any(part.asked for part in self._parts):
            self._hear()

    def _hear(self) -> None:
        """Wait until some process says something, but not for long, and see to those in trouble."""
        asked: dict[Any, Part] = {part.child.connection: part for part in self._parts if part.asked}
        began = time.monotonic()
        ready = wait([*asked], max(0.0, min(LOOK, min(part.since for part in asked.values()) + self._timeout - began)))
        if (stood_still := time.monotonic() - began - LOOK) > LOOK:  # this process did, and perhaps the others with it
            for part in asked.values():
                part.since += stood_still
        for connection in ready:
            part = asked[connection]
            try:
                part.hear()
            except (EnvironmentFailed, ChildProcessError) as error:
                self._replace(part, error)
        now = time.monotonic()
        late = [each for each in asked.values() if each.asked and now - each.since > self._timeout and not each.child.has_said]
        for part in late:
            self._replace(part, self._late([part] if self._may_replace(part) else late))
        if now - self._looked >= LOOK:
            self._look(now)

    def _look(self, now: float) -> None:
        """See to processes that have ended, and left their connection to others; and to those that stand still, now as at the
        last look."""
        for part in self._parts:
            if part.asked and part.child.has_ended and not part.child.has_said:
                self._replace(part, part.failure(part.child.how_it_ended()))
        still = {part for part in self._parts if part.asked and part.child.is_stopped} if self._max_restarts else set()
        lost, self._stopped, self._looked = still & self._stopped, still - self._stopped, now
        for part in sorted(lost, key=lambda part: part.first):
            self._replace(part, part.failure("was stopped (SIGSTOP)"))

    def _may_replace(self, part: Part) -> bool:
        return self._begun and part.restarts < self._max_restarts

    def _replace(self, part: Part, error: Exception) -> None:
        """Another process in the place of one that is lost, unless it has been replaced too often."""
        if not self._may_replace(part):
            raise error
        part.restart()
        said, begin = str(error), "begins" if part.first == part.last else "begin"
        said = said if said.startswith(self._label) else f"{self._label}: {said}"
        times = f"restart {part.restarts} of {self._max_restarts}"
        cause = "" if error.__cause__ is None else str(error.__cause__)
        warnings.warn(f"{said}; {part} {begin} anew in another process ({times}){cause}", WorkerRestarted, stacklevel=2)

    def _late(self, parts: Sequence[Part]) -> TimeoutError:
        stuck = ", ".join(map(str, parts))
        return TimeoutError(
            f"{self._label}: {parts[0].doing} of {stuck} did not end in {self._timeout:g} s, and was ended with its process: it "
            "hangs, or needs a larger worker_timeout"
        )


def _end(parts: list[Part]) -> None:
    """Let the environments close, and see to it that no process is left."""
    end_all([part.child for part in parts], (CLOSE, ()))
    parts.clear()

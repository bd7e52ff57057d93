"""Batches of host environments in NumPy, for worker processes. They fail at certain actions or at a given row."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.types import HostEnv, HostStep


def _raise() -> None:
    raise ZeroDivisionError("in the\nworld")


def _orphan() -> None:
    """Kill the process, after a fork that keeps the connection open."""
    if os.fork() == 0:
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    """Stop the process. The system stops its threads one after the other, so this one must wait for that."""
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(5)


def _regroup() -> None:
    """Leave the process group and hang."""
    os.setpgid(0, os.getpgid(os.getppid()))
    time.sleep(600)


def _garble() -> None:
    """Write to the connection, like a library that writes to a foreign file descriptor."""
    os.write(int(sys.argv[1]), b"garbage")


FAULTS = {
    "raise": _raise,
    "exit": partial(os._exit, 3),
    "leave": partial(sys.exit, 4),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "orphan": _orphan,
    "print": partial(print, "a line of a worker"),
    "hang": partial(time.sleep, 600),
    "stop": _stop,
    "regroup": _regroup,
    "garble": _garble,
}
"""Faults that special actions cause. A policy's actions are harmless."""

ACTIONS = {how: 100 + number for number, how in enumerate(FAULTS)}


class Batch:
    """NEXT_STEP rows: observations are [number of the environment, a draw of its stream, rows since the reset], rewards are 1.

    Episodes are truncated after ``length`` rows. Row ``fails_at`` of a process raises.
    """

    def __init__(self, num_envs: int, seed: int, first_id: int = 0, *, length: int = 10**9, fails_at: int | None = None) -> None:
        self.streams = [np.random.default_rng([seed, first_id + i]) for i in range(num_envs)]
        self.number, self.length, self.fails_at = np.arange(first_id, first_id + num_envs), length, fails_at
        self.rows, self.done = 0, np.zeros(num_envs, bool)
        self.time = np.zeros(num_envs, int)

    def reset(self) -> Any:
        return self.reset_where(np.ones(len(self.time), bool))

    def reset_where(self, mask: Any) -> Any:
        self.time[mask], self.done[mask] = 0, False
        return np.where(mask[:, None], self.seen(), 0)  # other rows are not read

    def step(self, action: Any) -> HostStep:
        self.rows += 1
        if self.rows == self.fails_at:
            _raise()
        for how, number in ACTIONS.items():
            if number in action:
                FAULTS[how]()
        self.time = np.where(self.done, 0, self.time + 1)
        reward = np.where(self.done, 0, 1).astype(np.float32)
        self.done = self.time >= self.length
        info = {"double": 2.0 * self.number, "lives": self.number.astype(np.int32)}
        return HostStep(self.seen(), reward, np.zeros_like(self.done), self.done.copy(), info)

    def seen(self) -> np.ndarray:
        draws = [stream.normal() for stream in self.streams]
        return np.stack([self.number, draws, self.time], 1).astype(np.float32)

    def close(self) -> None:
        pass


class Odd(Batch):
    """Returns rows that change in shape (``how`` "grows"), dtype ("turns") or structure ("tells"), contain arbitrary objects, the
    action ("acts"), or always the same array ("holds")."""

    def __init__(self, num_envs: int, seed: int, first_id: int = 0, *, how: str = "objects") -> None:
        super().__init__(num_envs, seed, first_id)
        self.how, self.held = how, np.zeros((num_envs, 2), np.float32)

    def step(self, action: Any) -> HostStep:
        row = super().step(action)
        time = int(self.time[0])
        if self.how == "grows":
            return row._replace(obs=np.full((len(self.time), time), time))
        if self.how == "turns":
            return row._replace(obs=row.obs.astype(np.float64 if time % 2 else np.int16))
        if self.how == "tells":
            return row._replace(info={**row.info, **({} if time % 2 else {"more": self.time.copy()})})
        if self.how == "objects":
            return row._replace(info={"text": np.array([{"rows": time}] * len(self.time), object)})
        if self.how == "acts":
            return row._replace(info={"action": action})
        self.held += 1
        return row._replace(obs=self.held)


class Once(Batch):
    """Fails once, in the first call of ``operation``."""

    def __init__(self, num_envs: int, seed: int, first_id: int = 0, *, mark: Path, operation: str = "step") -> None:
        super().__init__(num_envs, seed, first_id)
        self.mark, self.operation = mark, operation
        self.fail("open")

    def fail(self, operation: str) -> None:
        if operation == self.operation and (self.number[0] == 0) and not self.mark.exists():
            self.mark.touch()
            raise KeyError(operation)

    def reset(self) -> Any:
        self.fail("reset")
        return super().reset()

    def step(self, action: Any) -> HostStep:
        self.fail("step")
        return super().step(action)

    def reset_where(self, mask: Any) -> Any:
        if not mask.all():
            self.fail("reset_where")
        return super().reset_where(mask)


class Flag(Batch):
    """Fails to open if the file ``flag`` exists."""

    def __init__(self, *args: Any, flag: Path) -> None:
        super().__init__(*args)
        if flag.exists():
            raise FileExistsError("no more of these")


class Later(Batch):
    """Fails once in ``method`` of the first process, when the file ``flag`` exists."""

    def __init__(self, *args: Any, flag: Path, method: str) -> None:
        super().__init__(*args)
        self.flag, self.method = flag, method

    def fail(self, method: str) -> None:
        if method == self.method and self.number[0] == 0 and self.flag.exists():
            self.flag.unlink()
            raise KeyError(method)

    def reset(self) -> Any:
        self.fail("reset")
        return super().reset_where(np.ones(len(self.time), bool))

    def reset_where(self, mask: Any) -> Any:
        self.fail("reset_where")
        return super().reset_where(mask)


def host(**options: Any) -> HostEnv:
    """Return a HostEnv of two worker processes. ``options`` are those of ``Processes``; ``batch`` has those of ``Batch``."""
    space = spaces.Box(-np.inf, np.inf, (3,))
    return HostEnv(partial(_open, **options), space, spaces.Discrete(2), name="batches")


def _open(num_envs: int, seed: int, first_id: int = 0, *, batch: Any = (), **options: Any) -> Any:
    from jaxrl.envs.subprocess.processes import Processes

    start = partial(Batch, **dict(batch))
    return Processes("batches", start, num_envs, seed, first_id, **{"num_workers": 2, "timeout": 120.0, **options})

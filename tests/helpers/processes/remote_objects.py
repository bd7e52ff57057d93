"""Objects that tests run in other processes, on any engine of ``jaxrl.remote``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import remote
from tests.helpers.processes.children import runs, soon

ENGINES = ["local", pytest.param("ray", marks=pytest.mark.ray)]

WAIT = 60.0
"""Seconds after which a test gives up."""


def ended(pid: int) -> bool:
    return soon(lambda: not runs(pid))


def fails(future: Any) -> Exception:
    error = future.exception(WAIT)
    assert error is not None
    return error


class Counter:
    """Object that counts its calls, and fails in all ways."""

    def __init__(self, start: int = 0, fault: str = "") -> None:
        self.count, self.kept = start, list[Any]()
        if fault == "raise":
            raise ValueError(f"cannot start at {start}")
        if fault == "exit":
            os._exit(5)
        if fault == "sleep":
            time.sleep(600)
        if fault.startswith("/") and not os.path.exists(fault):  # a file that stands for the first process
            Path(fault).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    def slow_add(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.add()

    def mark(self, path: str) -> int:
        """Append a character to a file, so that a test can count calls over several processes."""
        with open(path, "a") as file:
            file.write("x")
        return self.add()

    def pid(self) -> int:
        return os.getpid()

    def host(self) -> str:
        return socket.gethostname()

    def same(self, *values: Any, **named: Any) -> Any:
        return values[0] if len(values) == 1 and not named else (values, named)

    def total(self, *arrays: np.ndarray) -> float:
        return float(sum(array.sum() for array in arrays))

    def keep(self, value: Any) -> None:
        self.kept.append(value)

    def kept_total(self) -> float:
        return self.total(*self.kept)

    def ones(self, size: int) -> np.ndarray:
        return np.ones(size, np.uint8)

    def write(self, array: np.ndarray) -> None:
        array[0] = 1

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def modules(self) -> list[str]:
        return sorted({name.partition(".")[0] for name in sys.modules})

    def raises(self, text: str = "this went\nwrong") -> None:
        raise KeyError(text)

    def raises_what_cannot_be_loaded(self) -> None:
        class Local(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__("of a local class")

        raise Local(1, 2)

    def is_short_of_memory(self) -> None:
        """Let the process find no memory to share from now on."""
        sys.modules["jaxrl.runtime.remote.local.wire"].available_on_host = lambda: 10

    def close(self) -> str:
        return "of the object itself"

    @classmethod
    def construct(cls) -> str:
        return "of the class itself"

    def lock(self) -> Any:
        return threading.Lock()

    def exit(self, code: int = 3) -> None:
        os._exit(code)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(5)  # the system stops the threads of a process one after the other

    def close_everything(self) -> None:
        os.closerange(3, 256)
        time.sleep(600)

    def fork(self) -> int:
        """Fork, and return in both processes."""
        return os.fork()

    def start_program(self) -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid

    def print_megabytes(self) -> int:
        return len([print("x" * 1000) for _ in range(4000)])

    def fill_memory(self, megabytes: int) -> None:
        self.kept.append(np.ones(megabytes * 10**6, np.uint8))
        time.sleep(600)

    def nested(self) -> int:
        """Open a cluster in this process."""
        with remote.open(cpus=1) as cluster:
            return cluster.start(Counter, 41).call("add").result(60)


class Recorder(Counter):
    """Counter that appends the number of each call to a file before it works."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def record(self, number: int, data: np.ndarray) -> int:
        with open(self.path, "a") as file:
            file.write(f"{number} {os.getpid()}\n")
        time.sleep(0.002)
        return int(data[number % len(data)])


def square(number: int) -> int:
    return number * number


def square_or_fail(number: int) -> int:
    if number == 3:
        raise ValueError("three is not allowed")
    return number * number


class DiesOnce:
    """Function whose process dies the first time it meets an item."""

    def __init__(self, folder: Path, items: tuple[int, ...]) -> None:
        self.folder, self.items = folder, items

    def __call__(self, number: int) -> int:
        seen = self.folder / str(number)
        if number in self.items and not seen.exists():
            seen.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number


@remote.remote_class
class Simulator:
    """Class with the decorator."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def play(self, number: int) -> int:
        """Return the seed and a number, added."""
        return self.seed + number


@remote.remote_class(wait=True, restarts=1)
class WaitingSimulator:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def play(self, number: int = 0) -> int:
        return self.seed + number

    def die(self) -> None:
        os._exit(3)


class OnlyHere:
    """Function that another process cannot load."""

    def __call__(self, number: int) -> int:
        return number

    def __setstate__(self, state: object) -> None:
        raise ValueError("cannot be loaded")

    def __getstate__(self) -> object:
        return {"some": "state"}

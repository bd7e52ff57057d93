"""Remote objects under kills, and in large numbers: nothing is executed twice, nothing hangs, nothing is left."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import remote
from jaxrl.runtime.remote.resources import memory_of
from tests.helpers.processes.children import runs, soon
from tests.helpers.processes.remote_objects import ENGINES, Counter, Recorder

pytestmark = [pytest.mark.chaos, pytest.mark.expensive(200)]

KILLS = 50


@pytest.mark.parametrize("engine", ENGINES)
def test_random_kills_lose_only_the_calls_in_progress(tmp_path: Path, engine: str) -> None:
    """Four objects, kills by SIGKILL and SIGSTOP at random times: each call is answered or lost, and none is executed twice."""
    generator, paths = random.Random(0), [tmp_path / f"calls-{index}" for index in range(4)]
    killed, pids = 0, set[int]()
    with remote.open(engine, cpus=8, note=lambda text: None) as cluster:
        objects = [cluster.start(Recorder, str(path), restarts=KILLS) for path in paths]
        data, futures = cluster.put(np.arange(100_000)), [list[Any]() for _ in objects]
        stop = threading.Event()

        def call() -> None:
            while not stop.is_set():
                for each, made in zip(objects, futures, strict=True):
                    if sum(not future.done() for future in made[-50:]) < 20:
                        made.append(each.call("record", len(made), data))
                time.sleep(0.001)

        caller = threading.Thread(target=call)
        caller.start()
        try:
            while killed < KILLS:
                assert caller.is_alive()
                time.sleep(generator.uniform(0.02, 0.3))
                with contextlib.suppress(OSError, IndexError):
                    pid = int(generator.choice(paths).read_text().split("\n")[-2].split()[1])
                    if runs(pid) and pid not in pids:
                        pids.add(pid)
                        os.kill(pid, generator.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
                        killed += 1
        finally:
            stop.set()
            caller.join()
        lost = 0
        for path, made in zip(paths, futures, strict=True):
            for number, future in enumerate(made):
                error = future.exception(120)
                assert error is None or isinstance(error, remote.WorkerLost), error
                assert error is not None or future.result() == number % 100_000
                lost += error is not None
            numbers = [int(line.split()[0]) for line in path.read_text().splitlines()]
            assert len({*numbers}) == len(numbers)  # none twice
            assert {number for number, future in enumerate(made) if future.exception() is None} <= {*numbers}
        pids |= {each.call("pid").result(60) for each in objects}
        assert sum(each.restarts for each in objects) == KILLS and lost <= KILLS
    assert soon(lambda: not any(map(runs, pids)))


@pytest.mark.parametrize(("engine", "number"), [("local", 1000), pytest.param("ray", 200, marks=pytest.mark.ray)])
def test_many_objects_one_after_the_other_take_no_more_memory(engine: str, number: int) -> None:
    def state() -> tuple[int, int]:
        gc.collect()
        return memory_of(os.getpid()), len(os.listdir("/proc/self/fd"))

    with remote.open(engine) as cluster:
        for index in range(number):
            if index == number // 5:
                before = state()
            one = cluster.start(Counter, index)
            assert one.call("same", np.full(100_000, index)).result(60)[-1] == index
            one.close()
            if index % 20 == 0:  # more rarely in tests than elsewhere: tests/conftest.py
                gc.collect()
        memory, descriptors = state()
    assert memory < before[0] * 1.05 and abs(descriptors - before[1]) <= 3

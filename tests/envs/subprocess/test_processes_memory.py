"""Rows of worker processes in shared memory: rows that fit, rows that do not, and ownership of the arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import tree

from jaxrl.envs.subprocess.processes import Processes
from jaxrl.envs.subprocess.shared_memory import SharedMemory, layout_of
from jaxrl.envs.subprocess.shared_rows import example_of, put
from jaxrl.types import HostStep
from tests.helpers.batches import Batch, Odd
from tests.helpers.paths import ROOT
from tests.helpers.worker_rows import shared


def opened(start: Any, num_envs: int = 5, num_workers: int = 2, **options: Any) -> Processes:
    envs = Processes("batches", start, num_envs, 0, num_workers=num_workers, timeout=120.0, **options)
    envs.reset()
    return envs


@pytest.mark.parametrize("num_workers", [1, 2])
def test_rows_are_those_of_one_process(num_workers: int) -> None:
    """Over ends, with ``step`` and with ``send`` and ``recv``. After the first row they are no longer pickled."""
    start = partial(Batch, length=3)
    alone, apart = start(5, 0), Processes("batches", start, 5, 0, num_workers=num_workers, timeout=120.0)
    np.testing.assert_array_equal(alone.reset(), apart.reset())
    for time in range(8):
        row, expected = apart.step(np.zeros(5, int)), alone.step(np.zeros(5, int))
        tree.map_structure(np.testing.assert_array_equal, row, expected)
        assert tree.map_structure(lambda x: x.dtype, row) == tree.map_structure(lambda x: x.dtype, expected)
        assert shared(apart) == [time > 0] * num_workers
    apart.send(np.zeros(5, int))
    parts, expected = dict[int, Any](), alone.step(np.zeros(5, int))
    for _ in range(num_workers):
        env_id, row = apart.recv()
        parts |= dict(zip(env_id.tolist(), row.obs, strict=True))
    np.testing.assert_array_equal(np.stack([parts[i] for i in range(5)]), expected.obs)
    mask = np.arange(5) % 2 == 0
    np.testing.assert_array_equal(apart.reset_where(mask)[mask], alone.reset_where(mask)[mask])
    assert shared(apart) == [True] * num_workers
    np.testing.assert_array_equal(apart.reset(), alone.reset())
    apart.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_rows_are_the_callers(num_workers: int) -> None:
    """Later rows do not overwrite them, and the caller may write into them."""
    envs = opened(partial(Odd, how="holds"), num_workers=num_workers)
    kept, parts = [], []
    for _ in range(4):
        kept.append(envs.step(np.zeros(5, int)))
        kept[-1].reward[:] = 7
    for _ in range(3):
        envs.send(np.zeros(5, int))
        parts.append([envs.recv()[1] for _ in range(num_workers)])
    envs.close()
    assert [row.obs[0, 0] for row in kept] == [1, 2, 3, 4] and all((row.reward == 7).all() for row in kept)
    assert [[row.obs[0, 0] for row in rows] for rows in parts] == [[time] * num_workers for time in (5, 6, 7)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["grows", "turns", "tells", "objects"])
def test_what_does_not_fit_the_memory_is_pickled(how: str) -> None:
    """Shapes, dtypes and entries that change, and Python objects: they arrive unchanged."""
    start = partial(Odd, how=how)
    alone, apart = start(5, 0), opened(start)
    alone.reset()
    for time in range(5):
        action = np.zeros(5, int)
        row, expected = apart.step(action), alone.step(action)
        np.testing.assert_array_equal(row.obs, expected.obs)
        assert row.obs.dtype == expected.obs.dtype
        assert row.info.keys() == expected.info.keys() and all((row.info[x] == expected.info[x]).all() for x in row.info)
        assert shared(apart) == [{"turns": time in (2, 4), "tells": time in (2, 4)}.get(how, False)] * 2
    apart.close()


def test_actions_of_other_types_get_there_as_they_are() -> None:
    envs = opened(partial(Odd, how="acts"), num_workers=1)
    for dtype in ("i4", "i4", "i8", "u1", "i4"):
        told = envs.step(np.zeros(5, dtype)).info["action"]
        assert told.dtype == dtype
    envs.close()


def test_an_example_has_arrays_alone() -> None:
    row = HostStep(np.zeros((3, 2)), np.zeros(3), np.zeros(3, bool), np.zeros(3, bool))
    action, example = np.zeros(3, int), example_of(np.zeros(3, int), row)
    assert example is not None and example[1].obs.shape == (0, 2) and example[1].obs.base is None
    others: list[Any] = [np.array([{}] * 3), np.zeros(2), np.zeros(()), 1.0, [1.0] * 3, None]
    assert not any(example_of(action, row._replace(reward=other)) for other in others)
    places = {"a": np.zeros(2), "b": (np.zeros(1, int),)}
    assert put(places, {"a": np.ones(2), "b": (np.ones(1, int),)}) and places["a"][1] == 1
    wrong: list[Any] = [{"a": np.ones(2)}, {"a": np.ones(2), "b": [np.ones(1, int)]}, {"a": np.ones(2), "b": (np.ones(1),)}, None]
    assert not any(put(places, each) for each in wrong)


SCRIPT = """
import resource, sys
import numpy as np
from functools import partial
from jaxrl.envs.subprocess.processes import Processes
from tests.helpers.batches import Batch

{limit}
children = lambda: open(f"/proc/self/task/{{__import__('os').getpid()}}/children").read().split()
try:
    envs = Processes("batches", Batch, 64, 0, num_workers={num_workers}, timeout=120.0)
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(64, int))
except OSError as error:
    print(error)
    print(children(), len(__import__('os').listdir('/proc/self/fd')) - before, 'jax' in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "num_workers", "message"),
    [
        (
            "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))",
            64,
            "too many open files to start another process: use fewer workers, or raise the limit of 24 (ulimit -n)",
        ),
        (
            "sys.dont_write_bytecode = True\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))",
            2,
            "0.0 MiB of memory to share with workers could not be allocated (File too large): use fewer environments, or ",
        ),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="counts children in /proc")
def test_what_cannot_be_had_is_one_error(limit: str, num_workers: int, message: str) -> None:
    """Open files, memory: no process and no open file is left."""
    code = SCRIPT.format(limit=f"before = len(__import__('os').listdir('/proc/self/fd'))\n{limit}", num_workers=num_workers)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    error, left = done.stdout.splitlines()
    assert done.stderr == "" and message in error and left == "[] 0 False", done


def test_memory_that_cannot_be_had_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    files = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("mmap.mmap", none)
    with pytest.raises(
        OSError, match=r"3\.0 MiB of memory to share .* could not be allocated \(Cannot allocate memory\): use fewer"
    ):
        SharedMemory(layout_of([np.zeros((3, 2**20), np.uint8)]).num_bytes)
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.slow
def test_workers_import_no_jax() -> None:
    envs = opened(Modules)
    assert envs.step(np.zeros(5, int)).info["jax"].tolist() == [False] * 5
    envs.close()


class Modules(Batch):
    """Reports True if its process has imported jax."""

    def step(self, action: Any) -> HostStep:
        return super().step(action)._replace(info={"jax": np.full(len(self.time), "jax" in sys.modules)})

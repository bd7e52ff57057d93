"""Lost worker processes are replaced: for every fault the rows around it are correct, and two runs are equal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tree

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.subprocess import processes
from jaxrl.envs.subprocess.processes import Processes, WorkerRestarted
from jaxrl.types import HostStep
from tests.helpers.batches import Batch, Flag, Later, Once
from tests.helpers.processes.children import runs, soon
from tests.helpers.worker_rows import NOTHING, at, numbers, seed_of, shared


@contextmanager
def opened(start: Any = Batch, num_workers: int = 2, **options: Any) -> Iterator[Processes]:
    """Open four environments. At the end no process is left, including replaced ones."""
    envs = Processes("batches", start, 4, 0, num_workers=num_workers, **{"timeout": 120.0, "max_restarts": 2, **options})
    ever = set(numbers(envs))
    start_again = envs._replace

    def replace(part: Any, error: Exception) -> None:
        envs._timeout = 120.0  # tests of hangs set one second, but a start may take longer
        start_again(part, error)
        ever.update(numbers(envs))

    envs._replace = replace  # type: ignore[method-assign]
    try:
        yield envs
    finally:
        envs.close()
        assert soon(lambda: not any(map(runs, ever)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raise", r"ZeroDivisionError: in the world; .*\nTraceback .*\n(.*\n)*ZeroDivisionError: in the\nworld"),
        ("exit", r"the process of environments 2 to 3 ended with exit code 3 during step; "),
        ("leave", r"the process of environments 2 to 3 ended with exit code 4 during step; "),
        ("abort", r"the process of environments 2 to 3 was killed by SIGABRT during step; "),
        ("kill", r"the process of environments 2 to 3 was killed by SIGKILL \(.* out of memory\) during step; "),
        ("orphan", r"the process of environments 2 to 3 was killed by SIGKILL \(.* out of memory\) during step; "),
        ("hang", r"step of environments 2 to 3 did not finish in 1 s, .* worker_timeout; "),
        ("stop", r"the process of environments 2 to 3 was stopped \(SIGSTOP\) during step; "),
        ("regroup", r"step of environments 2 to 3 did not finish in 1 s, .* worker_timeout; "),
        ("garble", r"the process of environments 2 to 3 wrote something that is not a message into the pipe .* during step; "),
    ],
)
def test_one_that_is_lost_is_replaced(how: str, why: str) -> None:
    """The others continue. The row is a reset row, and new episodes begin. The next rows use shared memory again."""
    first, second, again = Batch(2, 0, 0), Batch(2, 0, 2), Batch(2, seed_of(1, 2), 2)
    with opened() as envs:
        np.testing.assert_array_equal(envs.reset(), np.concatenate([first.reset(), second.reset()]))
        for _ in range(2):
            row = envs.step(NOTHING)
            np.testing.assert_array_equal(row.obs, np.concatenate([x.step(NOTHING).obs for x in (first, second)]))
            assert not envs.begun_anew().any()
        envs._timeout = 1.0 if how in ("hang", "regroup") else 120.0
        with pytest.warns(WorkerRestarted, match=rf"^batches: {why}") as told:
            row = envs.step(at(3, how))
        assert len(told) == 1
        assert "; environments 2 to 3 begin new episodes in a new process (restart 1 of 2)" in str(told[0].message)
        one = first.step(NOTHING)
        np.testing.assert_array_equal(row.obs, np.concatenate([one.obs, again.reset()]))
        assert row.reward.tolist() == [1, 1, 0, 0] and row.info["lives"].tolist() == [0, 1, 0, 0]
        assert not (row.terminated | row.truncated).any()
        assert tree.map_structure(lambda x: x.dtype, row) == tree.map_structure(lambda x: x.dtype, one)
        assert envs.begun_anew().tolist() == [False, False, True, True] and envs.restarts == [0, 1]
        for _ in range(2):
            row, (one, two) = envs.step(NOTHING), (x.step(NOTHING) for x in (first, again))
            tree.map_structure(lambda x, *y: np.testing.assert_array_equal(x, np.concatenate(y)), row, one, two)
            assert not envs.begun_anew().any()
        assert shared(envs) == [True, True]


def test_one_that_is_lost_too_often_ends_all() -> None:
    with opened() as envs:
        envs.reset()
        envs.step(NOTHING)
        for restart in (1, 2):
            with pytest.warns(WorkerRestarted, match=f"restart {restart} of 2"):
                envs.step(at(2, "raise"))
        with pytest.warns(WorkerRestarted, match=r"environments 0 to 1 begin new episodes .* \(restart 1 of 2\)"):
            envs.step(at(0, "exit"))
        assert envs.restarts == [1, 2]
        with pytest.raises(EnvironmentFailed, match=r"^ZeroDivisionError: in the world$"):
            envs.step(at(2, "raise"))
        with pytest.raises(RuntimeError, match=r"these environments are closed"):
            envs.reset()


def test_a_row_that_nobody_has_seen_is_made_up_too(tmp_path: Path) -> None:
    """The process is lost in the very first row, which defines the entries of info."""
    with opened(partial(Once, mark=tmp_path / "stepped"), num_workers=1) as envs:
        envs.reset()
        with pytest.warns(WorkerRestarted):
            row = envs.step(NOTHING)
        again = Batch(4, seed_of(1, 0), 0)
        again.reset(), again.step(NOTHING)  # the trial step of a new process
        np.testing.assert_array_equal(row.obs, again.reset())
        assert sorted(row.info) == ["double", "lives"] and not row.info["lives"].any() and envs.begun_anew().all()
        row.reward[:] = 7  # the caller may write into it
        for _ in range(2):
            np.testing.assert_array_equal(envs.step(NOTHING).obs, again.step(NOTHING).obs)
        with pytest.warns(WorkerRestarted):
            assert not envs.step(at(0, "kill")).reward.any()


@pytest.mark.parametrize("what", ["open", "reset"])
def test_what_fails_at_the_start_is_not_tried_again(what: str, tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentFailed, match=f"KeyError: '{what}'"),
        opened(partial(Once, mark=tmp_path / "x", operation=what)) as envs,
    ):
        envs.reset()


def test_a_start_that_fails_later_counts(tmp_path: Path) -> None:
    """Unlike the failure of a process that never ran."""
    with opened(partial(Flag, flag=tmp_path / "flag")) as envs:
        envs.reset()
        envs.step(NOTHING)
        (tmp_path / "flag").touch()
        with (
            pytest.warns(WorkerRestarted) as told,
            pytest.raises(EnvironmentFailed, match="FileExistsError: no more of these"),
        ):
            envs.step(at(1, "exit"))
        assert ["restart 1 of 2" in str(told[0].message), "restart 2 of 2" in str(told[1].message), len(told)] == [True, True, 2]


@pytest.mark.parametrize("method", ["reset", "reset_where"])
def test_one_that_is_lost_in_a_reset(method: str, tmp_path: Path) -> None:
    with opened(partial(Later, flag=tmp_path / "flag", method=method)) as envs:
        envs.reset()
        envs.step(NOTHING)
        (tmp_path / "flag").touch()
        with pytest.warns(WorkerRestarted):
            obs = envs.reset() if method == "reset" else envs.reset_where(NOTHING == 0)
        np.testing.assert_array_equal(obs[:2], Batch(2, seed_of(1, 0), 0).reset())
        assert envs.begun_anew().tolist() == [method == "reset_where"] * 2 + [False] * 2


@pytest.mark.slow
def test_two_runs_are_the_same() -> None:
    """Each process is lost in every third row, between rows of episodes that end."""

    def rows() -> list[HostStep]:
        with (
            pytest.warns(WorkerRestarted),
            opened(partial(Batch, fails_at=3, length=2), max_restarts=100) as envs,
        ):
            envs.reset()
            return [envs.step(NOTHING) for _ in range(7)]

    one, two = rows(), rows()
    tree.map_structure(np.testing.assert_array_equal, one, two)
    assert [row.reward.tolist() for row in one] == [[x] * 4 for x in (1, 1, 0, 1, 1, 0, 1)]
    assert len({float(row.obs[0, 1]) for row in one}) == 7  # no stream begins again


def test_the_others_go_on_meanwhile() -> None:
    """With ``send`` and ``recv``."""
    with opened() as envs, pytest.warns(WorkerRestarted):
        envs.reset()
        envs.step(NOTHING)
        envs.send(at(2, "raise"))
        times = {0: 0, 2: 0}
        while not times[2]:
            env_id, row = envs.recv()
            times[env_id[0]] += 1
            assert envs.begun_anew()[env_id].tolist() == [env_id[0] == 2] * 2 and row.reward.tolist() == [env_id[0] == 0] * 2
            if env_id[0] == 0:
                envs.send(NOTHING[:2], env_id)
        envs.recv() if times[0] else None
        assert times[0] >= 1


@pytest.mark.slow
def test_who_stood_still_with_this_process_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP to all of them, and SIGCONT to this process first."""
    monkeypatch.setattr("jaxrl.envs.subprocess.processes.LOOK", 0.1)
    with opened(max_restarts=0) as envs:
        envs.reset()
        number, calls, real = envs._parts[1].child.process.pid, [], processes.wait

        def wait(connections: Any, timeout: float) -> Any:
            calls.append(timeout)
            if len(calls) == 1:
                time.sleep(1.0)
                return []
            envs._timeout = 120.0
            os.kill(number, signal.SIGCONT)
            return real(connections, timeout)

        os.kill(number, signal.SIGSTOP)
        envs._timeout = 0.5
        monkeypatch.setattr(processes, "wait", wait)
        assert envs.step(NOTHING).reward.all() and len(calls) > 1


def test_what_processes_print_is_kept(tmp_path: Path) -> None:
    """With the location of a crash."""
    logs = tmp_path / "some" / "logs"
    with opened(log_folder=logs, max_restarts=1) as envs:
        envs.reset()
        envs.step(NOTHING)
        with pytest.warns(WorkerRestarted, match=r"SIGABRT during step: its output is in .*environments-2-3\.log; environments"):
            envs.step(at(2, "abort"))
    assert sorted(path.name for path in logs.iterdir()) == ["environments-0-1.log", "environments-2-3.log"]
    assert "Fatal Python error: Aborted" in (logs / "environments-2-3.log").read_text()
    assert "batches.py" in (logs / "environments-2-3.log").read_text()

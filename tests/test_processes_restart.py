"""Worker processes that are lost are replaced: whatever the fault, the rows around it are true, and two runs are the same."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tree

from jaxrl import make_ppo
from jaxrl.envs import processes
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.processes import Processes, WorkerRestarted
from jaxrl.returns import discounts, finished, gae
from jaxrl.runtime.drivers.asynchronous import AsyncSampler
from jaxrl.runtime.drivers.pools import begun_anew, open_envs
from jaxrl.runtime.drivers.sampler import HostSampler
from jaxrl.runtime.drivers.stepping import Stepper
from jaxrl.types import HostStep
from tests.batches import ACTIONS, Batch, host
from tests.test_processes import numbers, runs, soon
from tests.test_processes_memory import shared

NOTHING = np.zeros(4, int)


def at(environment: int, how: str) -> np.ndarray:
    """Actions by which one environment of four goes wrong."""
    return np.where(np.arange(4) == environment, ACTIONS[how], 0)


def seed_of(restart: int, first: int, seed: int = 0) -> int:
    return int(np.random.SeedSequence([seed, first, restart]).generate_state(1)[0] >> 1)


@contextmanager
def opened(start: Any = Batch, num_workers: int = 2, **options: Any) -> Iterator[Processes]:
    """Four environments; no process is left of them in the end, of those neither that were replaced."""
    envs = Processes("batches", start, 4, 0, num_workers=num_workers, **{"timeout": 120.0, "max_restarts": 2, **options})
    ever = set(numbers(envs))
    start_again = envs._replace

    def replace(part: Any, error: Exception) -> None:
        envs._timeout = 120.0  # one that hangs is given a second: a start may take longer
        start_again(part, error)
        ever.update(numbers(envs))

    envs._replace = replace  # type: ignore[method-assign]
    try:
        yield envs
    finally:
        envs.close()
        assert soon(lambda: not any(map(runs, ever)))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raise", r"ZeroDivisionError: in the world; .*\nTraceback .*\n(.*\n)*ZeroDivisionError: in the\nworld"),
        ("exit", r"the process of environments 2 to 3 ended with exit code 3 during step; "),
        ("leave", r"the process of environments 2 to 3 ended with exit code 4 during step; "),
        ("abort", r"the process of environments 2 to 3 was killed by SIGABRT during step; "),
        ("kill", r"the process of environments 2 to 3 was killed by SIGKILL \(.* out of memory\) during step; "),
        ("orphan", r"the process of environments 2 to 3 was killed by SIGKILL \(.* out of memory\) during step; "),
        ("hang", r"step of environments 2 to 3 did not end in 1 s, .* worker_timeout; "),
        ("stop", r"the process of environments 2 to 3 was stopped \(SIGSTOP\) during step; "),
    ],
)
def test_one_that_is_lost_is_replaced(how: str, why: str) -> None:
    """The others go on; the row is that of a reset, as are the new episodes; and the next rows go through memory again."""
    first, second, again = Batch(2, 0, 0), Batch(2, 0, 2), Batch(2, seed_of(1, 2), 2)
    with opened() as envs:
        np.testing.assert_array_equal(envs.reset(), np.concatenate([first.reset(), second.reset()]))
        for _ in range(2):
            row = envs.step(NOTHING)
            np.testing.assert_array_equal(row.obs, np.concatenate([x.step(NOTHING).obs for x in (first, second)]))
            assert not envs.begun_anew().any()
        envs._timeout = 1.0 if how == "hang" else 120.0
        with pytest.warns(WorkerRestarted, match=rf"^batches: {why}") as told:
            row = envs.step(at(3, how))
        assert len(told) == 1
        assert "; environments 2 to 3 begin anew in another process (restart 1 of 2)" in str(told[0].message)
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
        with pytest.warns(WorkerRestarted, match=r"environments 0 to 1 begin anew .* \(restart 1 of 2\)"):
            envs.step(at(0, "exit"))
        assert envs.restarts == [1, 2]
        with pytest.raises(EnvironmentFailed, match=r"^ZeroDivisionError: in the world$"):
            envs.step(at(2, "raise"))
        with pytest.raises(RuntimeError, match=r"these environments are closed"):
            envs.reset()


def test_a_row_that_nobody_has_seen_is_made_up_too(tmp_path: Path) -> None:
    """A process that is lost in the first row of all, which says what an info has."""
    with opened(partial(Once, mark=tmp_path / "stepped"), num_workers=1) as envs:
        envs.reset()
        with pytest.warns(WorkerRestarted):
            row = envs.step(NOTHING)
        again = Batch(4, seed_of(1, 0), 0)
        again.reset(), again.step(NOTHING)  # a trial
        np.testing.assert_array_equal(row.obs, again.reset())
        assert sorted(row.info) == ["double", "lives"] and not row.info["lives"].any() and envs.begun_anew().all()
        row.reward[:] = 7  # the caller's
        for _ in range(2):
            np.testing.assert_array_equal(envs.step(NOTHING).obs, again.step(NOTHING).obs)
        with pytest.warns(WorkerRestarted):
            assert not envs.step(at(0, "kill")).reward.any()


class Once(Batch):
    """The first one of all that does a thing fails in it."""

    def __init__(self, num_envs: int, seed: int, first_id: int = 0, *, mark: Path, what: str = "step") -> None:
        super().__init__(num_envs, seed, first_id)
        self.mark, self.what = mark, what
        self.fail("open")

    def fail(self, what: str) -> None:
        if what == self.what and (self.number[0] == 0) and not self.mark.exists():
            self.mark.touch()
            raise KeyError(what)

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


@pytest.mark.parametrize("what", ["open", "reset"])
def test_what_fails_at_the_start_is_not_tried_again(what: str, tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentFailed, match=f"KeyError: '{what}'"),
        opened(partial(Once, mark=tmp_path / "x", what=what)) as envs,
    ):
        envs.reset()


def test_a_start_that_fails_later_counts(tmp_path: Path) -> None:
    """As one that has never begun does not."""
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


class Flag(Batch):
    """Opens while there is no ``flag``."""

    def __init__(self, *args: Any, flag: Path) -> None:
        super().__init__(*args)
        if flag.exists():
            raise FileExistsError("no more of these")


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


class Later(Batch):
    """The first process fails in ``method`` when there is a ``flag``, once."""

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


def test_two_runs_are_the_same() -> None:
    """Where each process is lost in every third row, between rows of episodes that end."""

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
    """By ``send`` and ``recv``."""
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


def test_who_stood_still_with_this_process_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP to all of them, and SIGCONT to this one first."""
    monkeypatch.setattr("jaxrl.envs.processes.LOOK", 0.1)
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
    """With the place in which one crashed."""
    logs = tmp_path / "some" / "logs"
    with opened(log_folder=logs, max_restarts=1) as envs:
        envs.reset()
        envs.step(NOTHING)
        with pytest.warns(WorkerRestarted, match=r"SIGABRT during step: its output is in .*environments-2-3\.log; environments"):
            envs.step(at(2, "abort"))
    assert sorted(path.name for path in logs.iterdir()) == ["environments-0-1.log", "environments-2-3.log"]
    assert "Fatal Python error: Aborted" in (logs / "environments-2-3.log").read_text()
    assert "batches.py" in (logs / "environments-2-3.log").read_text()


# ---------------------------------------------------------------------------------------------------------------------- learning


def test_a_lost_row_is_a_reset_row() -> None:
    """Not valid, and the first of an episode follows; what was lost is in no statistic."""
    envs = Stepper(host(max_restarts=1, batch={"length": 3}), 4, 0)
    envs.reset()
    first = envs.step(NOTHING)
    with pytest.warns(WorkerRestarted):
        lost = envs.step(at(2, "exit"))
    now, rest = envs.input, [envs.step(NOTHING) for _ in range(3)]
    envs.close()
    assert first.valid.all() and lost.valid.tolist() == [True, True, False, False] and not lost.done.any()
    assert now.is_first.tolist() == [False, False, True, True] and now.prev_reward.tolist() == [1, 1, 0, 0]
    assert lost.episode.episodic_length.tolist() == [2, 2, 0, 0] and lost.episode.episodic_return.tolist() == [2, 2, 0, 0]
    assert [row.done.tolist() for row in rest] == [[True, True, False, False], [False] * 4, [False, False, True, True]]
    assert rest[0].episode.episodic_return[0] == rest[2].episode.episodic_return[2] == 3


def test_what_comes_before_it_counts_as_cut_off() -> None:
    """By the rules that learn from returns: as if the row before were truncated, whatever the value of the new episode is."""
    valid = np.array([1, 1, 1, 0, 1, 1], bool)[:, None]
    no, cut = np.zeros((6, 1), bool), np.arange(6)[:, None] == 2
    reward, values = np.arange(1.0, 7.0, dtype=np.float32)[:, None] * valid, np.float32([1, 2, 3, 4, 100, 6, 7])[:, None]

    def advantages(truncated: np.ndarray, values: np.ndarray) -> Any:
        rows = Rows(no, truncated, valid)
        return gae(reward, *discounts(rows, 0.9, 0.8), values[:-1], values[1:], valid)

    np.testing.assert_array_equal(advantages(no, values), advantages(cut, values))
    other = np.where(np.arange(7)[:, None] > 3, 0, values).astype(np.float32)
    np.testing.assert_array_equal(advantages(no, values)[:3], advantages(no, other)[:3])
    assert not finished(Rows(no, no, valid)).any()  # an episode that was lost has no return


class Rows:
    def __init__(self, terminated: Any, truncated: Any, valid: Any) -> None:
        self.terminated, self.truncated, self.valid = terminated, truncated, valid


@pytest.mark.parametrize("sampler", [HostSampler, partial(HostSampler, num_groups=2), AsyncSampler])
def test_rollouts_go_on(sampler: Any) -> None:
    """Each process is lost in its fifth row; episodes have three rows, and one for the reset."""
    env = host(max_restarts=100, batch={"length": 3, "fails_at": 6})
    agent = make_ppo(env, num_envs=4, rollout_length=16, num_minibatches=1, model={"hidden_sizes": (4,)})
    policy = agent.algorithm.policy(agent.init(jax.random.key(0)).learner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestarted)
        sampling = sampler(agent, 0)
        rollout, metrics = sampling.collect(policy, jax.random.key(1))
        sampling.close()
    valid, ended = np.array([1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0], bool), [2, 8, 14]
    obs = np.asarray(rollout.inputs.obs)[:, :, 2]
    np.testing.assert_array_equal(rollout.valid, np.repeat(valid[:, None], 4, 1))
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(rollout.truncated)[:, 0]), ended)
    np.testing.assert_array_equal(rollout.inputs.is_first[1:], ~np.asarray(rollout.valid))
    np.testing.assert_array_equal(obs, np.repeat([[0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 0]], 4, 0).T)
    assert float(metrics["charts/episodic_return"].sum) == 3 * 12 and int(metrics["charts/episodic_return"].count) == 12


def test_of_several_seeds_those_are_told_that_were_lost() -> None:
    envs: Any = open_envs(host(max_restarts=1), 2, [0, 1])
    assert not begun_anew(envs).any()
    envs.reset()
    envs.step(NOTHING)
    with pytest.warns(WorkerRestarted):
        row = envs.step(np.array([0, 0, 0, ACTIONS["exit"]]))
    assert begun_anew(envs).tolist() == [False, False, False, True] and row.reward.tolist() == [1, 1, 1, 0]
    envs.reset_where(np.array([True, False, False, False]))  # of the first seed alone
    assert not begun_anew(envs).any()
    envs.close()


def test_limits_that_the_environments_do_not_know_of(tmp_path: Path) -> None:
    """A process that is lost when some of its episodes are cut off takes the others along."""
    start = partial(Once, mark=tmp_path / "reset", what="reset_where")
    limited = host(max_restarts=1)._replace(open=partial(_opened, start), max_episode_steps=3)
    envs = Stepper(limited, 4, 0)
    envs.reset()
    envs.episode.episodic_length[0] = 1  # environment 0 is at its limit one row before the others
    rows = [envs.step(NOTHING) for _ in range(2)]
    with pytest.warns(WorkerRestarted):
        rows.append(envs.step(NOTHING))
    obs = envs.input.obs
    envs.close()
    assert [row.truncated.tolist() for row in rows] == [[False] * 4, [True] + [False] * 3, [False, False, True, True]]
    assert rows[2].valid.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(obs[:2], Batch(2, seed_of(1, 0), 0).reset())


def _opened(start: Any, num_envs: int, seed: int) -> Processes:
    return Processes("batches", start, num_envs, seed, num_workers=2, timeout=120.0, max_restarts=1)

"""Workers that raise, exit, are killed, hang or are stopped: each fault is reported once, the worker replaced, and its rollout
repeated."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import make_env
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.replay.transitions import transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.runtime.actors.pool import ActorPool, _members
from jaxrl.runtime.actors.transports.ray import RayProcess
from jaxrl.runtime.actors.transports.shared_memory import ChildProcess
from jaxrl.runtime.actors.worker_handle import WorkerHandle
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.runtime.system.clock import Ran
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.types import Agent, Rollout
from tests.helpers.agents import assert_bit_equal, small, small_ppo
from tests.helpers.gymnasium_envs import Told
from tests.helpers.processes.actor_pools import kept, keys, nothing_left, opened, pids, policies
from tests.helpers.processes.children import runs, soon
from tests.helpers.processes.remote_objects import ENGINES

SEEDS = [3, 5]


def told(mark: Path) -> str:
    return f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={mark}"


class Disturbed(NamedTuple):
    """A pool of two workers, the file for orders, and the pool's messages."""

    agent: Agent
    pool: ActorPool
    mark: Path
    notes: list[str]
    policy: Any

    def tell(self, worker: int, how: str, row: int = 0) -> None:
        Told.tell(self.mark, pids(self.pool)[worker], how, row)

    def collect(self, n: int) -> Any:
        return self.pool.collect(self.policy(n), keys(SEEDS, n))


@pytest.fixture(scope="module", params=ENGINES)
def disturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disturbed]:
    mark = tmp_path_factory.mktemp("told") / "order"
    agent = small_ppo(told(mark), num_envs=3)
    with opened(agent, SEEDS, max_restarts=20, engine=request.param) as (pool, notes):
        yield Disturbed(agent, pool, mark, notes, policies(agent, SEEDS))


def check_seam(agent: Agent, before: Rollout, after: Rollout, member: WorkerHandle) -> None:
    """Assert that ``after`` was made by a worker that replaces another one."""
    job = member.job
    mine = slice(job.first_id, job.first_id + job.num_envs)
    last, first = (jax.tree.map(lambda x, t=t: x[:, t, mine], part.inputs) for part, t in ((before, -1), (after, 0)))
    assert_bit_equal(first, last)
    row = jax.tree.map(lambda x: x[:, 0, mine], (after.valid, after.reward, after.terminated, after.truncated))
    assert not any(np.asarray(x).any() for x in row)
    assert after.inputs.is_first[:, 1, mine].all() and after.valid[:, 1, mine].all()
    seeds = [np.random.SeedSequence([seed, job.worker, member.restarts]).generate_state(1)[0] >> 1 for seed in job.seeds]
    envs = Stepper(agent.env, job.num_envs, [int(seed) for seed in seeds], job.first_id)  # type: ignore[arg-type]
    envs.reset()
    np.testing.assert_array_equal(after.inputs.obs[:, 1, mine], envs.input.obs.reshape(len(seeds), job.num_envs, -1))
    envs.close()


def check_no_seam(before: Rollout, after: Rollout, member: WorkerHandle) -> None:
    mine = slice(member.job.first_id, member.job.first_id + member.job.num_envs)
    assert_bit_equal(*(part.inputs.obs[:, t, mine] for part, t in ((before, -1), (after, 0))))
    done = (before.terminated | before.truncated)[:, -1, mine]
    np.testing.assert_array_equal(after.valid[:, 0, mine], ~done)


FAULTS = [
    ("raise", r"failed: .*environment 2 raised ZeroDivisionError: in the world \(.*\)"),
    ("exit", "ended with exit code 3"),
    ("abort", "was killed by SIGABRT"),
    ("kill", r"was killed by SIGKILL \(unless a user or program sent it, the system ran out of memory\)"),
    ("stop", r"was stopped \(SIGSTOP\)"),
    ("hang", "did not finish a row in 2 s: it hangs, or needs a larger timeout"),
    ("orphan", r"was killed by SIGKILL \(unless a user or program sent it, the system ran out of memory\)"),
    ("regroup", "did not finish a row in 2 s: it hangs, or needs a larger timeout"),
    ("garble", "wrote something that is not a message into the pipe to this process"),
]


LOST = r"was lost \(process \d+ on 127\.0\.0\.1 has died\)"
ON_RAY = dict.fromkeys(("exit", "abort", "kill", "stop", "orphan"), LOST)
"""Fault -> Ray's report of a process that ended."""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "message"), FAULTS, ids=[how for how, _ in FAULTS])
def test_a_worker_that_fails_is_replaced(how: str, message: str, disturbed: Disturbed) -> None:
    """Reported once, with the traceback of an exception.

    The new worker begins with an invalid row that shows the last observation of the previous rollout, and its environments have
    other seeds. The other worker is not affected.
    """
    pool, notes = disturbed.pool, disturbed.notes
    if how == "garble" and isinstance(pool.members[1].process, RayProcess):
        pytest.skip("it has no pipe to this process")
    before, said, restarts = kept(disturbed.collect(0)[0]), len(notes), pool.restarts
    old = pids(pool)
    if isinstance(pool.members[1].process, RayProcess):
        message = ON_RAY.get(how, message)
    disturbed.tell(1, how)
    pool.dispatcher.timeout = 2.0 if how in ("hang", "regroup") else 600.0
    after = kept(disturbed.collect(1)[0])
    first, *more = notes[said:]
    replaced = rf"at rollout \d+; replaced \(restart {sum(restarts) + 1} of 20\)"
    assert re.fullmatch(
        rf"gymnasium:tests\.helpers\.gymnasium_envs:Told\S*: worker 1 \(environment 2\) {message} {replaced}", first
    ), first
    assert len(more) == (how == "raise") and all("Traceback" in text and "gymnasium_envs.py" in text for text in more)
    assert pool.restarts == [restarts[0], restarts[1] + 1]
    check_seam(disturbed.agent, before, after, pool.members[1])
    check_no_seam(before, after, pool.members[0])
    assert pids(pool)[0] == old[0] and soon(lambda: not runs(old[1]))
    again = kept(disturbed.collect(2)[0])
    check_no_seam(after, again, pool.members[1])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_has_nothing_to_do_is_replaced(number: signal.Signals, disturbed: Disturbed) -> None:
    """Like one that fails in a rollout. The message does not say for how long it was gone."""
    pool, notes = disturbed.pool, disturbed.notes
    before, said, restarts = kept(disturbed.collect(3)[0]), len(notes), pool.restarts
    os.kill(pids(pool)[0], number)
    assert soon(lambda: pool.restarts == [restarts[0] + 1, restarts[1]])
    after = kept(disturbed.collect(4)[0])
    assert len(notes) == said + 1 and "between two rollouts; replaced" in notes[-1]
    assert number.name in notes[-1] or isinstance(pool.members[0].process, RayProcess)
    check_seam(disturbed.agent, before, after, pool.members[0])
    check_no_seam(before, after, pool.members[1])


@pytest.mark.slow
def test_too_many_restarts_end_the_pool(disturbed: Disturbed) -> None:
    """Not earlier. Waiting for a rollout and requesting one raise an error with the cause. No process is left."""
    pool, notes = disturbed.pool, disturbed.notes
    pool.dispatcher.max_restarts = sum(pool.restarts) + 1
    disturbed.tell(1, "raise")
    disturbed.collect(5)
    assert sum(pool.restarts) == pool.dispatcher.max_restarts
    left, said = pids(pool), len(notes)
    disturbed.tell(0, "raise")
    message = r"^worker 0 \(environments 0 to 1\) failed: .*in the world .*, after max_restarts=\d+ restarts: raise"
    for n in (6, 7):
        with pytest.raises(WorkerFailed, match=message) as raised:
            disturbed.collect(n)
        assert "in step" in str(raised.value.__cause__) and "\n" not in str(raised.value)
    assert len(notes) == said and soon(lambda: not any(map(runs, left)))


def test_who_was_suspended_with_its_workers_misses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a batch system or a container suspends all of them and resumes this process first."""
    times = iter([0.0, 0.2, 100.0, 100.2, 200.0, 200.2, 200.4, 200.6, 200.8, 201.1])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    ran, (member,) = Ran(), _members(small_ppo("gymnasium:CartPole-v1"), [0], 1, False, None, False, 0, False, 1)
    member.ready = member.warm = member.busy = True
    child = SimpleNamespace(is_stopped=False, has_ended=False)
    member.process = process = object.__new__(ChildProcess)
    process.child, process._stopped = child, None  # type: ignore[assignment]
    told = []
    for stopped in (True, True, False, True, True, True, True, True, True):
        child.is_stopped = stopped
        told.append(member.trouble(0, 60.0, ran.look()))
    assert told[:-1] == [None] * 8 and told[-1] == "was stopped (SIGSTOP)"


@pytest.mark.slow
def test_one_that_cannot_start_again(tmp_path: Path) -> None:
    """Counts as another restart."""
    agent = small_ppo(told(tmp_path / "order"), num_envs=1, num_minibatches=1)
    with opened(agent, [0], 1, max_restarts=1) as (pool, notes):
        (member,) = pool.members
        member.job = member.job._replace(env=partial(make_env, "gymnasium:tests.no_such_module:Env"))
        os.kill(pids(pool)[0], signal.SIGKILL)
        with pytest.raises(WorkerFailed, match=r"no_such_module.* at its start, after max_restarts=1 restarts"):
            pool.collect(policies(agent, [0])(0), keys([0], 0))
        assert len(notes) == 1 and "SIGKILL" in notes[0]


@pytest.mark.slow
def test_who_is_told_of_a_fault_may_close(tmp_path: Path) -> None:
    """The callback runs in the thread that watches the workers, which may also collect lost pools."""
    agent = small_ppo(told(tmp_path / "order"), num_envs=1, num_minibatches=1)
    with nothing_left():
        pool = ActorPool(agent, [0], num_workers=1, note=lambda text: pool.close())
        wait = pool.begin(policies(agent, [0])(0), keys([0], 0))
        os.kill(pids(pool)[0], signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"^this actor pool is closed$"):
            wait()


# -------------------------------------------------------------------------------------------------------------- equality of runs


class Killed(ActorPool):
    """Worker 1 dies in row ``row`` of its environments, or before the request of rollout ``rollout``."""

    def __init__(self, *args: Any, mark: Path, row: int | None = None, rollout: int | None = None, **options: Any) -> None:
        self.rollout, self.asked = rollout, 0
        super().__init__(*args, **options)
        self.rollouts: list[Rollout] = []
        if row is not None:
            Told.tell(mark, pids(self)[1], "kill", row)

    def begin(self, policy: Any, key: Any) -> Any:
        if self.asked == self.rollout:
            os.kill(pids(self)[1], signal.SIGKILL)
        self.asked += 1
        wait = super().begin(policy, key)

        def waited() -> Any:
            collected = wait()
            self.rollouts.append(kept(collected[0]))
            return collected

        return waited


def driven(agent: Agent, iterations: int, lag: int, **options: Any) -> Any:
    """Return states and rollouts of a driver, and the number of restarts."""
    notes: list[str] = []
    with nothing_left():
        driver = HostDriver(agent, SEEDS, partial(Killed, num_workers=2, note=notes.append, **options), lag=lag)
        states = driver.init()
        pool: Any = driver.learner.sampler  # type: ignore[union-attr]
        states, _, _ = driver.iterate(states, iterations)
        driver.close()
    assert len(notes) == 1, notes
    return jax.device_get(states._replace(key=jax.random.key_data(states.key))), pool.rollouts[: pool.asked - lag], pool.restarts


@pytest.mark.slow
def test_a_kill_in_a_rollout_is_one_before_it(tmp_path: Path) -> None:
    """Two runs with the same kill are equal to the bit on the deterministic clock."""
    agent, mark = small("a2c", told(tmp_path / "order"), num_envs=2), tmp_path / "order"
    within, before = (driven(agent, 5, 0, mark=mark, **when) for when in ({"row": 19}, {"rollout": 2}))
    assert within[2] == before[2] == [0, 1]
    assert_bit_equal(within[:2], before[:2])
    valid = np.stack([rollout.valid[:, 0, 1] for rollout in within[1]])
    assert not valid[2].any() and valid[3].any()


@pytest.mark.slow
def test_replay_stores_no_step_across_a_restart(tmp_path: Path) -> None:
    """With rollouts of a single row collected ahead, two runs with the same kill are equal.

    Each stored transition leads from one time of an episode to the next.
    """
    mark = tmp_path / "order"
    agent = small("dqn", told(mark), num_envs=2, rollout_length=1, buffer_size=200, learning_starts=30, replay_ratio=16)
    one, other = (driven(agent, 30, 1, mark=mark, row=row) for row in (21, 21))
    assert one[2] == other[2] == [0, 1]
    assert_bit_equal(one[:2], other[:2])
    replay = uniform_replay(100, 2, 1, before=1, after=1)
    stored = jax.tree.map(lambda x: jnp.asarray(x[0]), one[0].learner.replay)
    draw = replay.draw(stored, jax.random.key(0), 1000)
    drawn = transitions(replay, stored, draw, 0.9)
    times, beyond = (np.asarray(x.obs[:, 1])[np.asarray(draw.valid)] for x in (drawn.inputs, drawn.next_inputs))
    np.testing.assert_array_equal(beyond, times + 1)
    assert set(times.tolist()) == {0, 1, 2, 3, 4}
    seam = [n for n, rollout in enumerate(one[1]) if not rollout.valid[0, 0, 1] and rollout.inputs.obs[0, 0, 1, 1] < 5]
    assert len(seam) == 1, "a rollout of one row, whose whole share is the row that counts for nothing"

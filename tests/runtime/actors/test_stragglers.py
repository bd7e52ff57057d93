"""Workers whose rollouts are cut short: padding does not count, and their environments and carries continue."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.optimize.gradients import pmean, valid_mean
from jaxrl.replay.transitions import example_row, replay_rows, transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.returns import discounts, endless_gae, gae, lambda_returns, vtrace
from jaxrl.rollout.running_statistics import init_statistics, update_statistics
from jaxrl.runtime.actors.gradients import AllReducedLearner
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.actors.scheme import resolve_scheme
from jaxrl.runtime.actors.stragglers import CUT_ROWS, cut_rows, enough
from jaxrl.runtime.actors.trainer import open_actors
from jaxrl.runtime.samplers.sampler import HostSampler, row_keys
from jaxrl.runtime.trainers.host import HostLearner
from jaxrl.types import Agent, Rollout
from tests.helpers.agents import RECURRENT, assert_close, small
from tests.helpers.gymnasium_envs import Told
from tests.helpers.processes.actor_pools import kept, keys, nothing_left, opened, pids, policies
from tests.helpers.processes.children import soon

MARK = Path(tempfile.gettempdir()) / f"jaxrl-test-cut-{os.getpid()}"
ENV = f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={MARK}"
"""Environment that observes a draw of its stream and the time, and truncates every fifth step."""
SEEDS, LENGTH, NUM_ENVS = [3, 5], 8, 6
LATE = slice(4, 6)
"""Environments of the last of three workers."""


OTHERS = MARK.with_name(f"{MARK.name}.others")


def cut_in(pool: ActorPool, row: int, rollouts: int) -> threading.Thread:
    """Let the last worker wait in row ``row`` until the others have finished ``rollouts`` rollouts, and those until it has
    arrived. Return the started thread that releases them."""
    OTHERS.unlink(missing_ok=True)
    MARK.unlink(missing_ok=True)
    *others, last = range(len(pool.members))
    rows = pool.dispatcher.progress.rows.tolist()
    for worker in others:
        Told.tell(MARK, pids(pool)[worker], "wait.others", rows[worker] + 1)  # the first reset is a row too
    Told.tell(MARK, pids(pool)[last], "wait", rows[last] + row + 1)

    def open_gates() -> None:
        if soon(lambda: pool.dispatcher.progress.rows[last] == rows[last] + row):
            OTHERS.touch()
            if soon(lambda: pool.dispatcher.progress.due[0] == rollouts):
                MARK.touch()

    thread = threading.Thread(target=open_gates)
    thread.start()
    return thread


class Collected(NamedTuple):
    agent: Agent
    policy: Any
    rollouts: list[Rollout]
    """Rollout n uses the n-th parameters.

    The last worker waits in the fifth row of the first, in which episodes end, and in the first row of the third. It is killed
    before the fourth.
    """
    metrics: list[Any]
    notes: list[str]


@pytest.fixture(scope="module")
def collected() -> Iterator[Collected]:
    agent = small("a2c", ENV, num_envs=NUM_ENVS, rollout_length=LENGTH, model=RECURRENT)
    policy, rollouts, metrics = policies(agent, SEEDS), [], []
    with opened(agent, SEEDS, 3, sync_fraction=0.6) as (pool, notes):
        for n in range(4):
            waiting = cut_in(pool, 4 if n == 0 else 0, n + 1) if n in (0, 2) else None
            if n == 3:
                Told.tell(MARK, pids(pool)[2], "kill")
            got = kept(pool.collect(policy(n), keys(SEEDS, n)))
            rollouts.append(got[0])
            metrics.append(got[1])
            if waiting:
                waiting.join()
    MARK.unlink()
    OTHERS.unlink()
    yield Collected(agent, policy, rollouts, metrics, notes)


def ends(rollout: Rollout) -> list[int]:
    """Return the number of rows that each worker collected: each of them shows a new draw."""
    moved = np.any(rollout.inputs.obs[:, 1:] != rollout.inputs.obs[:, :-1], (0, 3))
    return [int(np.flatnonzero(moved[:, each].any(1)).max()) + 1 for each in (slice(0, 2), slice(2, 4), LATE)]


def test_how_many_are_enough() -> None:
    """At least the share, without rounding up too far."""
    cases = {
        (0.6, 2): 2,
        (0.6, 3): 2,
        (0.6, 5): 3,
        (0.6, 10): 6,
        (0.55, 20): 11,
        (0.01, 4): 1,
        (1e-12, 4): 1,
        (1.0, 7): 7,
        (0.5, 1): 1,
    }
    assert {case: enough(*case) for case in cases} == cases
    (share,) = cut_rows([8, 5], [1, 3], 2, 8).values()
    assert share.sum.tolist() == [9, 9] and share.count.tolist() == [32, 32]  # type: ignore[union-attr]


@pytest.mark.slow
def test_late_workers_are_cut_short(collected: Collected) -> None:
    """After the row in which the others finish, and not before a quarter of the rows."""
    rows = [ends(rollout) for rollout in collected.rollouts]
    assert rows[0] == [8, 8, 5] and rows[2] == [8, 8, 2]
    for each, metrics in zip(rows, collected.metrics, strict=True):
        assert sorted(each)[1:] == [8, 8] and min(each) >= 2
        assert metrics[CUT_ROWS].sum.tolist() == [2 * (24 - sum(each))] * 2 and metrics[CUT_ROWS].count.tolist() == [48] * 2
    assert len(collected.notes) == 1 and "worker 2" in collected.notes[0]


@pytest.mark.slow
def test_padding_counts_for_nothing(collected: Collected) -> None:
    for rollout, metrics in zip(collected.rollouts, collected.metrics, strict=True):
        for worker, end in enumerate(ends(rollout)):
            mine = slice(2 * worker, 2 * worker + 2)
            for name in ("valid", "reward", "terminated", "truncated"):
                assert not getattr(rollout, name)[:, end:, mine].any(), name
            for x in jax.tree.leaves(rollout.inputs):
                assert (x[:, end:, mine] == x[:, end : end + 1, mine]).all()
        assert metrics["charts/valid_rows"].sum.tolist() == rollout.valid.sum((1, 2)).tolist()
        assert metrics["charts/episodic_length"].count.tolist() == rollout.truncated.sum((1, 2)).tolist()
        lengths = metrics["charts/episodic_length"]
        assert lengths.sum.tolist() == [5 * count for count in lengths.count.tolist()]  # episodes lose no steps in between


@pytest.mark.slow
def test_environments_go_on_where_they_stood(collected: Collected) -> None:
    """Over three rollouts: equal to a loop without cuts, given the same actions."""
    host: Any = collected.agent.env
    for i, seed in enumerate(SEEDS):
        for worker, first_id in enumerate((0, 2, 4)):
            mine = slice(first_id, first_id + 2)
            envs, done, obs = host.open(2, seed, first_id), np.zeros(2, bool), None
            obs = np.array(envs.reset())
            for rollout in collected.rollouts[:3]:
                for t in range(ends(rollout)[worker]):
                    np.testing.assert_array_equal(rollout.inputs.obs[i, t, mine], obs)
                    assert (rollout.valid[i, t, mine] == ~done).all()
                    step = envs.step(rollout.action[i, t, mine])
                    obs, done = np.array(step.obs), step.truncated | step.terminated
                    assert (rollout.truncated[i, t, mine] == step.truncated).all()
                    np.testing.assert_array_equal(rollout.reward[i, t, mine], step.reward)
                np.testing.assert_array_equal(rollout.inputs.obs[i, -1, mine], obs)
            envs.close()


@pytest.mark.slow
def test_memory_goes_on_where_it_stood(collected: Collected) -> None:
    """A rollout begins with the carry after the last real row before it, and acting uses that carry."""
    algorithm = collected.agent.algorithm
    act = jax.jit(jax.vmap(lambda *given: algorithm.act(*given, explore=True), in_axes=(0, 0, 0, None, 0)))
    for n, (rollout, later) in enumerate(zip(collected.rollouts[:2], collected.rollouts[1:], strict=False)):
        of_rows = jax.vmap(lambda key: row_keys(key, LENGTH))(keys(SEEDS, n))
        for worker, end in enumerate(ends(rollout)):
            env_id = np.arange(2 * worker, 2 * worker + 2)
            carry = jax.tree.map(lambda x, env_id=env_id: x[:, env_id], rollout.carry)
            for t in range(end):
                now = jax.tree.map(lambda x, t=t, env_id=env_id: x[:, t, env_id], rollout.inputs)
                carry, action, extras = act(collected.policy(n), carry, now, env_id, of_rows[:, t])
                assert (action == rollout.action[:, t, env_id]).all()
                assert_close(extras["log_prob"], rollout.extras["log_prob"][:, t, env_id])
            assert_close(carry, jax.tree.map(lambda x, env_id=env_id: x[:, env_id], later.carry))


@pytest.mark.slow
def test_one_that_is_lost_after_a_cut_begins_anew(collected: Collected) -> None:
    """With an invalid row that shows the previous worker's last observation."""
    before, after = (jax.tree.map(lambda x: x[:, :, LATE], each.inputs) for each in collected.rollouts[2:])
    np.testing.assert_array_equal(before.obs[:, -1], after.obs[:, 0])
    assert not collected.rollouts[3].valid[:, 0, LATE].any() and after.is_first[:, 1].all()


# --------------------------------------------------------------------------------------------------------------- learning from it


def cut(rollout: Rollout, envs: slice, end: int) -> Rollout:
    """Return the first ``end`` rows of some environments of one seed, [T, B]."""
    rows = [jax.tree.map(lambda x: x[:end, envs], part) for part in rollout[1:7]]
    of_envs = [jax.tree.map(lambda x: x[envs], part) for part in rollout[7:]]
    return Rollout(jax.tree.map(lambda x: x[: end + 1, envs], rollout.inputs), *rows, *of_envs)


def late(collected: Collected, n: int, seed: int = 0) -> tuple[Rollout, Rollout]:
    """Return the late worker's n-th rollout, with and without padding."""
    rollout, end = jax.tree.map(lambda x: x[seed], collected.rollouts[n]), ends(collected.rollouts[n])[2]
    return cut(rollout, LATE, LENGTH), cut(rollout, LATE, end)


def numpy_gae(rollout: Rollout, values: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Compute GAE of a whole rollout, row by row.

    A termination has no value after it; a truncation and the last row bootstrap.
    """
    advantage, last = np.zeros_like(values[:-1]), np.zeros_like(values[0])
    for t in reversed(range(len(advantage))):
        beyond = np.where(rollout.terminated[t], 0, values[t + 1])
        goes_on = ~(rollout.terminated[t] | rollout.truncated[t])
        last = np.where(rollout.valid[t], rollout.reward[t] + gamma * beyond - values[t] + gamma * lam * goes_on * last, 0)
        advantage[t] = last
    return advantage


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, 2])
def test_returns_are_those_of_the_rows_that_there_are(collected: Collected, n: int) -> None:
    """As if the rollout had only its real rows, for any values of padding."""
    padded, short = late(collected, n)
    end, rng = len(short.reward), np.random.default_rng(n)
    values, log_rho = (rng.normal(size=(rows, 2)).astype(np.float32) for rows in (LENGTH + 1, LENGTH))
    given = [
        (rows.reward, *discounts(rows, 0.9, 0.8), values[: len(rows.reward)], values[1 : len(rows.reward) + 1], rows.valid)
        for rows in (padded, short)
    ]
    advantages = gae(*given[0])
    assert_close(advantages[:end], numpy_gae(short, values[: end + 1], 0.9, 0.8))
    assert not np.any(advantages[end:])
    traces = [vtrace(*each[:5], log_rho[: len(each[0])], each[5]) for each in given]
    returns = [lambda_returns(*each[:3], each[4], each[5]) for each in given]
    values[end:] = values[end]  # padding repeats it
    endless = [endless_gae(each[0], values[: len(each[0]) + 1], each[5], 0.9, 0.8) for each in given]
    for ours, theirs in zip(
        jax.tree.leaves([traces[0], returns[0], endless[0]]), jax.tree.leaves([traces[1], returns[1], endless[1]]), strict=True
    ):
        assert_close(ours[:end], theirs)
        assert not np.any(ours[end:])


@pytest.mark.slow
def test_gradients_are_those_of_the_rows_that_there_are(collected: Collected) -> None:
    policy = jax.tree.map(lambda x: x[0], collected.policy(0))
    of_rollout: Any = jax.jit(collected.agent.algorithm.gradients)  # type: ignore[arg-type]
    (gradient, losses), (expected, their_losses) = (of_rollout(policy, each) for each in late(collected, 0))
    assert_close(gradient, expected)
    assert_close(losses, their_losses)
    assert any(np.any(x) for x in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_statistics_are_those_of_the_rows_that_there_are(collected: Collected) -> None:
    """Statistics of observations, and of discounted returns, which continue from one rollout to the next."""
    space = collected.agent.env.observation_space
    padded = short = init_statistics(space, 2)
    for n in range(3):
        both = late(collected, n)
        padded, short = (update_statistics(old, new, 0.9, None) for old, new in zip((padded, short), both, strict=True))
    assert_close(padded, short)


@pytest.mark.slow
def test_no_draw_of_replay_sees_padding(collected: Collected) -> None:
    """Three-step returns of the late worker's rows, against a loop over its rows."""
    space, actions = collected.agent.env.observation_space, collected.agent.env.action_space
    replay = uniform_replay(3 * LENGTH, 2, LENGTH, before=1, after=3)
    state, rollouts = replay.init(example_row(space, actions)), [late(collected, n)[0] for n in range(3)]
    for rollout in rollouts:
        state = replay.add(state, replay_rows(rollout), rollout.env_id - LATE.start)
    drawn = replay.draw(state, jax.random.key(0), 512)
    batch = jax.tree.map(np.asarray, transitions(replay, state, drawn, 0.9, 3))
    valid, reward = (np.concatenate([getattr(each, name) for each in rollouts]) for name in ("valid", "reward"))
    obs = np.concatenate([each.inputs.obs[:-1] for each in rollouts])
    seams, seen = {5, LENGTH + ends(collected.rollouts[1])[2]}, set()
    for i, (row, env) in enumerate(zip(np.asarray(drawn.row), np.asarray(drawn.env), strict=True)):
        if not drawn.valid[i]:
            continue
        count = next((m for m in (1, 2) if not valid[row + m, env]), 3)
        assert valid[row, env]
        np.testing.assert_allclose(batch.reward[i], sum(0.9**m * reward[row + m, env] for m in range(count)), rtol=1e-6)
        np.testing.assert_allclose(batch.discount[i], 0.9**count, rtol=1e-6)
        np.testing.assert_array_equal(batch.next_inputs.obs[i], obs[row + count, env])
        seen.add(int(row + count))
    assert seams & seen  # some reach what padding shows


# ----------------------------------------------------------------------------------------------------------- several devices


def on_two_devices(agent: Agent) -> AllReducedLearner:
    sampler: Any = SimpleNamespace(members=[None, None])
    return AllReducedLearner(agent, sampler, 1)


def unequal(rollout: Rollout, seed: int = 0) -> Rollout:
    """Return one seed's rollout in which the second half of the environments was cut after three rows."""
    rollout = jax.tree.map(lambda x: np.array(x[seed]), rollout)
    half = rollout.valid.shape[1] // 2
    for name in ("valid", "reward", "terminated", "truncated"):
        getattr(rollout, name)[3:, half:] = 0
    for x in jax.tree.leaves(rollout.inputs):
        x[4:, half:] = x[3, half:]
    return rollout


NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}
ALIKE: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"num_minibatches": 2, "normalize_advantages": True, **NORMALIZED}),
    "a2c": ("a2c", {"normalize_advantages": True, **NORMALIZED}),
    "ppo recurrent": ("ppo", {"num_minibatches": 2, "model": RECURRENT, "surrogate": "kl"}),
    "ppo in parts": ("ppo", {"num_minibatches": 2, "accumulation_steps": 4}),
    "impala": ("impala", {}),
    "pqn": ("pqn", {"num_minibatches": 2}),
    "reinforce": ("reinforce", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ALIKE)
def test_devices_with_more_or_fewer_rows_learn_what_one_does(case: str) -> None:
    """Each valid row has the same weight in gradients, statistics and logs, on any device."""
    algorithm, settings = ALIKE[case]
    agent = small(algorithm, "gymnasium:CartPole-v1", num_envs=4, rollout_length=16, **settings)
    sampler = HostSampler(agent, [3])
    state = HostLearner(agent, sampler).start(jax.random.key(0))
    policy = jax.tree.map(lambda x: x[None], agent.algorithm.policy(state.learner))
    rollout = unequal(sampler.collect(policy, keys([3], 0))[0])
    sampler.close()
    shares = rollout.valid[:, :2].sum(), rollout.valid[:, 2:].sum()
    assert shares[0] > 4 * shares[1] > 0
    expected, losses = jax.jit(agent.algorithm.update)(state.learner, rollout)
    learner, metrics = jax.jit(lambda *given: on_two_devices(agent).learn_from(*given, {}))(state.learner, rollout)
    assert_close(jax.device_get(learner.params), jax.device_get(expected.params), 1e-5)
    assert_close(jax.device_get(learner.statistics), jax.device_get(expected.statistics), 1e-5)
    for name, mean in losses.items():
        assert_close(metrics[name].sum / metrics[name].count, mean.sum / mean.count, 1e-4)


@pytest.mark.slow
def test_one_row_on_all_devices_counts_as_one() -> None:
    x, valid = jnp.array([[3.0, 5.0], [7.0, 9.0]]), jnp.array([[False, False], [True, False]])
    mean = jax.vmap(lambda x, valid: pmean(valid_mean(valid, "d")(x), "d"), axis_name="d")
    assert mean(x, valid).tolist() == [7.0, 7.0] and mean(x, valid & False).tolist() == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "who"), [("ppo", {"updates": "all_reduced"}), ("a2c", {"gradients": "workers"})])
def test_a_run_learns_from_rollouts_that_were_cut(algorithm: str, who: dict[str, str]) -> None:
    """One of two devices, or of two workers, has fewer rows. The clock decides whether later rollouts are complete."""
    agent = small(algorithm, ENV, num_envs=4, rollout_length=LENGTH)
    scheme = resolve_scheme(agent, {"sync_fraction": 0.5, **who}, 2)
    assert scheme is not None
    with nothing_left():
        driver = open_actors(agent, [3], scheme, None, lambda note: None)
        states = driver.init()
        pool: Any = driver.learner.sampler  # type: ignore[union-attr]
        waiting = cut_in(pool, 2, 1)
        before = kept(states.learner.params)
        states, metrics, alive = driver.iterate(states, 1)
        waiting.join()
        MARK.unlink()
        OTHERS.unlink()
        assert alive.all()
        assert (metrics[CUT_ROWS].sum.tolist(), metrics[CUT_ROWS].count.tolist()) == ([2 * 5], [4 * LENGTH])
        assert metrics["charts/valid_rows"].sum.tolist() == [2 * 7 + 2 * 3]  # one reset each, before the cut
        states, metrics, alive = driver.iterate(states, 2)
        assert alive.all() and metrics[CUT_ROWS].count.tolist() == [2 * 4 * LENGTH]
        after = kept(states.learner.params)
        driver.close()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True))

"""Learning around a lost worker process: its episodes count as truncated, for every sampler and algorithm."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import make_ppo
from jaxrl.envs.subprocess.processes import Processes, WorkerRestarted
from jaxrl.returns import discounts, episode_completed, gae
from jaxrl.runtime.samplers.asynchronous import AsyncSampler
from jaxrl.runtime.samplers.host_envs import SeedBatch
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.runtime.samplers.stepper import Stepper
from tests.helpers.batches import ACTIONS, Batch, Once, host
from tests.helpers.worker_rows import NOTHING, at, seed_of


def test_a_lost_row_is_a_reset_row() -> None:
    """It is invalid, and a first row follows. The lost row is in no statistic."""
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
    """Algorithms that learn from returns treat the row before as truncated, for any value of the new episode."""
    valid = np.array([1, 1, 1, 0, 1, 1], bool)[:, None]
    no, cut = np.zeros((6, 1), bool), np.arange(6)[:, None] == 2
    reward, values = np.arange(1.0, 7.0, dtype=np.float32)[:, None] * valid, np.float32([1, 2, 3, 4, 100, 6, 7])[:, None]

    def advantages(truncated: np.ndarray, values: np.ndarray) -> Any:
        rows = Rows(no, truncated, valid)
        return gae(reward, *discounts(rows, 0.9, 0.8), values[:-1], values[1:], valid)

    np.testing.assert_array_equal(advantages(no, values), advantages(cut, values))
    other = np.where(np.arange(7)[:, None] > 3, 0, values).astype(np.float32)
    np.testing.assert_array_equal(advantages(no, values)[:3], advantages(no, other)[:3])
    assert not episode_completed(Rows(no, no, valid)).any()  # a lost episode has no return


class Rows:
    def __init__(self, terminated: Any, truncated: Any, valid: Any) -> None:
        self.terminated, self.truncated, self.valid = terminated, truncated, valid


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [HostSampler, partial(HostSampler, num_groups=2), AsyncSampler])
def test_rollouts_go_on(sampler: Any) -> None:
    """Each process is lost in its fifth row. Episodes have three rows and a reset row."""
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


@pytest.mark.slow
def test_of_several_seeds_those_are_told_that_were_lost() -> None:
    envs = SeedBatch(host(max_restarts=1), 2, [0, 1])
    assert not envs.begun_anew().any()
    envs.reset()
    envs.send(NOTHING)
    envs.recv()
    envs.send(np.array([0, 0, 0, ACTIONS["exit"]]))
    with pytest.warns(WorkerRestarted):
        row = envs.recv()
    assert envs.begun_anew().tolist() == [False, False, False, True] and row.reward.tolist() == [1, 1, 1, 0]
    envs.reset_where(np.array([True, False, False, False]))  # of the first seed only
    assert not envs.begun_anew().any()
    envs.close()


@pytest.mark.slow
def test_limits_that_the_environments_do_not_know_of(tmp_path: Path) -> None:
    """A process is lost when some of its episodes are truncated. Its other episodes end too."""
    start = partial(Once, mark=tmp_path / "reset", operation="reset_where")
    limited = host(max_restarts=1)._replace(open=partial(_opened, start), max_episode_steps=3)
    envs = Stepper(limited, 4, 0)
    envs.reset()
    envs.episode.episodic_length[0] = 1  # environment 0 reaches its limit one row before the others
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

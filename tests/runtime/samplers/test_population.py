"""Populations on host environments: the learner of the pure program, chunks, workers that are lost, budgets, errors."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.agent import policy_shapes, state_shapes
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.evolution.noise import LowRankKernel
from jaxrl.models import greedy_policy
from jaxrl.rollout.play import member_axes, numbers_of_member
from jaxrl.runtime.actors.population_pool import PopulationPool
from jaxrl.runtime.actors.scheme import Scheme, resolve_scheme
from jaxrl.runtime.samplers import population
from jaxrl.runtime.samplers.population import MemberPlayer, PopulationSampler, chunks_of, joined
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.runtime.trainers.host import PopulationLearner
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, run_steps, small
from tests.helpers.hosted import hosted
from tests.helpers.processes.actor_pools import pids_of_members
from tests.helpers.processes.children import soon

KEY = partial(jax.random.key, 0)
small_es: Any = partial(small, "es")
SMALL_POLICY = partial(greedy_policy, hidden_sizes=(8,))
CARTPOLE = "envpool:CartPole-v1"


def learner_of(agent: Any, num_seeds: int = 1) -> Any:
    return PopulationLearner(agent, PopulationSampler(agent, range(num_seeds)), num_seeds)


def keys(number: int = 1) -> Any:
    return jax.random.split(KEY(), number)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["normal", "low_rank"])
def test_the_host_gives_the_data_of_the_pure_program(noise: str) -> None:
    """On an environment without randomness, whole learner states are bit-equal after three generations."""
    env, settings = probes.truncation(), {"noise": noise, "members": 4}
    pure, host = small_es(env, **settings), small_es(hosted(env), **settings)
    state, metrics = run_steps(pure, pure.init(keys()[0]), 3)
    learner = learner_of(host)
    on_host = learner.init(keys())
    for _ in range(3):
        on_host, metrics_of_host = learner.step(on_host)
    assert_bit_equal(state.learner, jax.tree.map(lambda x: x[0], on_host.learner))
    for name, value in metrics.items():
        np.testing.assert_allclose(np.asarray(value), np.asarray(metrics_of_host[name])[0], rtol=1e-6, err_msg=name)


def test_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small_es(CARTPOLE)
    policy = jax.jit(agent.algorithm.policy)(agent.init(KEY()).learner)
    player = MemberPlayer(agent)
    whole = player.play(policy, KEY(), np.arange(8))
    assert whole.member.tolist() == [m for m in range(8) for _ in range(2)] and whole.episodic_length.min() > 5
    assert len({*whole.episodic_return[::2]}) > 1  # members differ
    for parts in ([np.arange(8)], np.split(np.arange(8), 2), np.arange(8)[:, None]):
        assert_bit_equal(joined([player.play(policy, KEY(), part) for part in parts]), whole)
    monkeypatch.setattr(population, "MOST_ENVIRONMENTS", 4)
    assert [chunk.tolist() for chunk in chunks_of(agent)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_members_share_a_chunk_fairly() -> None:
    agent = small_es(CARTPOLE, members=12, episodes=4)
    assert [len(chunks_of(agent, workers)) for workers in (1, 2, 3, 5)] == [1, 2, 3, 4]
    assert all(len({len(chunk) for chunk in chunks_of(agent, workers)}) == 1 for workers in (1, 2, 3, 5))
    assert len(chunks_of(small_es(CARTPOLE, members=2, episodes=100))) == 2  # a member has more than fit


def test_what_all_members_share_is_not_copied() -> None:
    agent = small_es(CARTPOLE, noise="low_rank")
    leaves = jax.tree.leaves_with_path(state_shapes(agent).learner.params)
    axes, is_low = member_axes(agent.algorithm, policy_shapes(agent)), lambda x: isinstance(x, LowRankKernel)
    found = list(filter(is_low, jax.tree.leaves(axes.params, is_leaf=is_low)))
    assert len(found) == sum("kernel" in jax.tree_util.keystr(path) for path, _ in leaves) == 2
    assert all(each.kernel is None and each.left == each.right == 0 for each in found)
    assert numbers_of_member(agent.algorithm, policy_shapes(agent)) == (4 + 8) + 8 + (8 + 2) + 2  # a, b and biases, of two layers
    plain = small_es(CARTPOLE)
    assert set(jax.tree.leaves(member_axes(plain.algorithm, policy_shapes(plain)).params)) == {0}


@pytest.mark.parametrize("env", [CARTPOLE, "gymnasium:CartPole-v1", "hosted"])
def test_all_members_begin_in_the_same_states(env: str) -> None:
    """In one batch where the backend can, else in one batch for each member."""
    agent = small_es(hosted(jaxrl.make_env("CartPole-v1")) if env == "hosted" else env)
    envs = Stepper(agent.env, 3, [7] * 4, evaluation=True)
    envs.reset()
    first = np.asarray(envs.input.obs).reshape(4, 3, 4)
    envs.close()
    alone = Stepper(agent.env, 3, 7, evaluation=True)
    alone.reset()
    np.testing.assert_array_equal(first, np.broadcast_to(alone.input.obs, first.shape))
    assert len({row.tobytes() for row in first[0]}) == 3
    alone.close()


def test_a_budget_ends_a_seed_on_the_host() -> None:
    agent = small_es(CARTPOLE)
    learner = learner_of(agent, 2)
    state = learner.init(keys(2), {"max_env_steps": np.array([20.0, 0.0], np.float32)})
    for _ in range(2):
        before, (state, metrics) = state, learner.step(state)
    stopped, going = ([jax.tree.map(lambda x, i=i: x[i], s.learner) for s in (before, state)] for i in range(2))
    assert_bit_equal(*stopped)
    assert int(going[0].version) == 1 and int(going[1].version) == 2
    rows = metrics["charts/valid_rows"]
    assert np.asarray(rows.sum).tolist() == [0, int(going[1].rows - going[0].rows)]
    assert np.asarray(metrics["charts/episodic_return"].count).tolist() == [0, 16]


@pytest.mark.slow
def test_the_members_of_a_lost_worker_are_played_again(tmp_path: Path) -> None:
    """A worker is killed in each generation. The states are those of one process."""
    agent = small_es(CARTPOLE, members=16, horizon=100)
    alone, notes = learner_of(agent), list[str]()
    pool = PopulationPool(agent, [0], Scheme(num_workers=2), tmp_path, notes.append)
    learner = PopulationLearner(agent, pool, 1)
    expected, state = alone.init(keys()), learner.init(keys())
    try:
        for generation in range(3):
            expected, _ = alone.step(expected)
            threading.Timer(0.02, os.kill, (pids_of_members(pool)[generation % 2], signal.SIGKILL)).start()
            state, _ = learner.step(state)
            assert soon(lambda generation=generation: sum(pool.restarts) > generation)
        assert sum(pool.restarts) == 3 and all("SIGKILL" in note for note in notes)
        assert_bit_equal(state.learner, expected.learner)
    finally:
        pool.close()


@pytest.mark.slow
def test_restarts_are_limited_over_all_workers(tmp_path: Path) -> None:
    agent = small_es(CARTPOLE, members=4)
    pool = PopulationPool(agent, [0], Scheme(num_workers=2, max_restarts=1), tmp_path, list[str]().append)
    learner = PopulationLearner(agent, pool, 1)
    try:
        state = learner.init(keys())
        for worker in pids_of_members(pool):
            os.kill(worker, signal.SIGKILL)
        assert soon(lambda: sum(pool.restarts) == 2)
        with pytest.raises(WorkerFailed, match="workers were replaced 2 times, and max_restarts=1"):
            learner.step(state)
    finally:
        pool.close()


def stuck() -> Any:
    """Make an environment whose third row never ends."""
    env = hosted(probes.truncation())

    class Running:
        def __init__(self, *args: Any) -> None:
            self.envs, self.rows = env.open(*args), 0

        def step(self, action: Any) -> Any:
            self.rows += 1
            if self.rows == 3:
                time.sleep(600)
            return self.envs.step(action)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.envs, name)

    return env._replace(open=lambda num_envs, seed, first_id=0: Running(num_envs, seed, first_id))


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced_and_then_fails_the_run(tmp_path: Path) -> None:
    agent = small_es("tests.runtime.samplers.test_population:stuck", members=2)
    pool = PopulationPool(agent, [0], Scheme(num_workers=1, timeout=1, max_restarts=1), tmp_path, list[str]().append)
    learner = PopulationLearner(agent, pool, 1)
    try:
        with pytest.raises(WorkerFailed, match=r"Member 0.*timeout=1 seconds"):
            learner.step(learner.init(keys()))
        assert "Timeout" in (tmp_path / "worker-0.log").read_text() and "in step" in (tmp_path / "worker-0.log").read_text()
    finally:
        pool.close()


def test_only_its_own_scheme_plays_a_population() -> None:
    agent = small_es(CARTPOLE)
    assert resolve_scheme(agent, "es", 2) == resolve_scheme(agent, None, 2) == Scheme(num_workers=2)
    for name in ("a3c", "ga3c", "impala", "ddppo"):
        with pytest.raises(ValueError, match=r"ES plays whole episodes with each member .* use scheme='es'"):
            resolve_scheme(agent, name, 2)
    with pytest.raises(ValueError, match="num_workers=9 must be at most members=8"):
        resolve_scheme(agent, "es", 9)
    with pytest.raises(ValueError, match="worker processes cannot import model="):
        PopulationPool(small_es(CARTPOLE, model=lambda *s: SMALL_POLICY(*s)), [0], Scheme(num_workers=1), None, print)


def test_samplers_of_rollouts_are_refused() -> None:
    for settings in ({"sampler": "async"}, {"overlap": True}):
        with pytest.raises(ValueError, match="plays whole episodes"):
            jaxrl.run(small_es(CARTPOLE), total_steps=1, quiet=True, **settings)


@pytest.mark.slow
def test_a_run_with_workers_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    agent, settings = small_es(CARTPOLE), {"seeds": 2, "quiet": True, "eval_every": 0, "num_workers": 2}
    rows = agent.steps_per_iteration
    jaxrl.run(agent, total_steps=2 * rows, out=tmp_path / "run", **settings)
    resumed, _ = jaxrl.resume(tmp_path / "run", total_steps=4 * rows, quiet=True, trust="tests")
    straight, history = jaxrl.run(agent, total_steps=4 * rows, **settings)
    assert_bit_equal(resumed, straight)
    assert {"charts/worker_restarts", "time/environments", "charts/policy_lag"} <= {*history}

"""Runs with several agents in an environment: resumed, over devices, with workers, evaluated, recorded, loaded."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import parallel
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.runtime.samplers.sampler import HostSampler
from tests.helpers.agents import LEARN_ANYWHERE, algorithms, assert_bit_equal, assert_close, small, small_ppo
from tests.helpers.processes.actor_pools import keys, opened, pids, policies
from tests.helpers.teams import HOSTED, HOSTED_CENTRAL, JOINT, PURE, hosted_mortal, joint, mortal

SEEDS = [3, 5]
QUIET: dict[str, Any] = {"quiet": True, "tensorboard": False, "eval_episodes": 2}


def run_and_resume(agent: Any, folder: Path) -> tuple[dict[str, Any], int]:
    """Assert that a run that is interrupted ends as a whole one; return the history of the whole one and its steps."""
    rows = agent.steps_per_iteration
    first = (agent.algorithm.warmup_iterations + 2) * rows
    whole, history = jaxrl.run(agent, first + 2 * rows, seeds=2, **QUIET)
    jaxrl.run(agent, first, seeds=2, out=folder, **QUIET)
    resumed, _ = jaxrl.resume(folder, total_steps=first + 2 * rows, quiet=True)
    assert_bit_equal(resumed, whole)
    return history, first + 2 * rows


@algorithms(("dqn",), LEARN_ANYWHERE)
def test_a_resumed_run_is_bit_equal(algorithm: str, tmp_path: Path) -> None:
    history, total_steps = run_and_resume(small(algorithm, PURE), tmp_path)
    assert history["rows"][-1] == total_steps  # steps of environments, whatever the number of agents
    assert (history["env_steps"][-1] <= 0.85 * history["rows"][-1]).all()  # one row in four is a reset
    returns = history["charts/team_return"]
    np.testing.assert_allclose(returns[~np.isnan(returns)], 80, rtol=1e-5)


@pytest.mark.slow
def test_devices_share_whole_environments() -> None:
    agent = small("a2c", PURE)
    on_both = parallel.data_parallel(agent, 2)
    step, step_on_both = (jax.jit(each.step, compiler_options=COMPILE_FAST) for each in (agent, on_both))
    state, states = agent.init(jax.random.key(0)), on_both.init(jax.random.key(0))
    for _ in range(2):
        (state, metrics), (states, of_both) = step(state), step_on_both(states)
    assert_close(states.learner.params, state.learner.params)
    assert float(of_both["charts/team_return"]) == float(metrics["charts/team_return"]) == 80


def test_states_of_environments_are_split_with_their_lanes() -> None:
    agent = parallel.on_axis(small_ppo(PURE), "d")
    state = small_ppo(PURE).init(jax.random.key(0))
    halves = parallel.split_state(agent, state, 2)
    assert halves.actor.done.shape == (2, 6) and jax.tree.leaves(halves.actor.env_state)[0].shape == (2, 2)
    assert_bit_equal(parallel.join_state(agent, halves), state)


# ------------------------------------------------------------------------------------- algorithms that see the agents together


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINT)
def test_a_resumed_run_that_learns_from_whole_teams_is_bit_equal(name: str, tmp_path: Path) -> None:
    run_and_resume(joint(name), tmp_path)
    policy = jaxrl.load_policy(tmp_path, which="last")
    alone = policy({"observation": np.zeros((3, 3), np.float32)})
    assert alone.shape == (3,) and set(alone.tolist()) <= {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINT)
def test_devices_share_what_is_drawn_of_whole_teams(name: str) -> None:
    on_both = parallel.data_parallel(joint(name), 2)
    step, states = jax.jit(on_both.step, compiler_options=COMPILE_FAST), on_both.init(jax.random.key(0))
    for _ in range(2):
        states, metrics = step(states)
    assert float(metrics["charts/team_return"]) == 80
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states.learner.params))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINT)
def test_teams_on_the_host_learn_together(name: str) -> None:
    agent = joint(name, HOSTED_CENTRAL)
    rows = (agent.algorithm.warmup_iterations + 2) * agent.steps_per_iteration
    states, history = jaxrl.run(agent, rows, seeds=2, **QUIET)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states.learner.params))
    assert history["rows"][-1] == rows


# ---------------------------------------------------------------------------------------------------------------------- workers


@pytest.mark.slow
def test_rollouts_of_workers_are_those_of_one_process() -> None:
    agent = small_ppo(HOSTED)
    policy, alone = policies(agent, SEEDS), HostSampler(agent, SEEDS)
    with opened(agent, SEEDS, 3) as (pool, notes):
        for n in range(3):
            (ours, metrics), (theirs, expected) = (each.collect(policy(n), keys(SEEDS, n)) for each in (pool, alone))
            assert_close(ours, theirs)
            assert_close(metrics, expected)
            assert ours.env_id.tolist() == [[*range(12)]] * 2
        assert [(job.lanes.start, job.num_lanes) for job in (member.job for member in pool.members)] == [(0, 6), (6, 3), (9, 3)]
        assert not notes
    alone.close()


@pytest.mark.slow
def test_a_worker_that_restarts_begins_new_episodes_of_all_agents() -> None:
    """The second of two workers is killed between two rollouts of six rows, when agent 0 is over and the others live. Its next
    rollout begins with a row that is not valid, and then with the first row of a new episode for each of its agents."""
    agent = small_ppo(HOSTED, rollout_length=6)
    policy = policies(agent, SEEDS)
    with opened(agent, SEEDS, 2) as (pool, notes):
        before, _ = pool.collect(policy(0), keys(SEEDS, 0))
        last = np.array(before.inputs.obs[:, -1])
        np.testing.assert_array_equal(before.valid[0, 4:, 6:9], [[True] * 3, [False, True, True]])
        os.kill(pids(pool)[1], signal.SIGKILL)
        rollout, _ = pool.collect(policy(1), keys(SEEDS, 1))
        assert len(notes) == 1
    lost, kept = slice(6, 12), slice(0, 6)
    np.testing.assert_array_equal(rollout.inputs.obs[:, 0, lost], last[:, lost])
    assert not rollout.valid[:, 0, lost].any() and not rollout.terminated[:, 0, lost].any()
    assert rollout.inputs.is_first[:, 1, lost].all() and not rollout.inputs.is_first[:, 2:5, lost].any()
    np.testing.assert_array_equal(rollout.inputs.obs[0, 1:5, 6:9, 0], np.arange(4)[:, None] + np.zeros((4, 3)))
    np.testing.assert_array_equal(rollout.valid[0, 1:5, 6:9], [[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]])
    # The other worker goes on: rows 6 to 11 of its environments, whose episodes have a row for the reset after three.
    np.testing.assert_array_equal(rollout.valid[0, :, :3], [[0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]])
    assert rollout.env_id[0, kept].tolist() == [*range(6)]


# --------------------------------------------------------------------------------------------------- evaluation, policies, data


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("team") / "run"
    agent = small_ppo(PURE)
    jaxrl.run(agent, 2 * agent.steps_per_iteration, seeds=1, out=folder, **QUIET)
    return folder


def test_evaluations_are_means_over_agents() -> None:
    for env in (mortal(), hosted_mortal()):
        agent = small_ppo(env)
        played = jaxrl.evaluate(agent, first_policy(agent), jax.random.key(1), 3)
        np.testing.assert_allclose(played.episodic_return, [80 / 3] * 3, rtol=1e-6)
        assert played.episodic_length.tolist() == [3] * 3 and played.finished.all()


def first_policy(agent: Any) -> Any:
    return agent.algorithm.policy(agent.algorithm.init(jax.random.key(0), agent.hyperparams))


def test_a_loaded_policy_acts_for_a_batch_of_agents(trained: Path) -> None:
    policy = jaxrl.load_policy(trained, which="last")
    actions = policy(np.zeros((3, 3), np.float32))
    assert actions.shape == (3,) and set(actions.tolist()) <= {0, 1}


def test_a_recorded_episode_lasts_until_all_are_over() -> None:
    from jaxrl.runtime.cli.film import player
    from jaxrl.runtime.cli.flags import PlayOptions

    for env in (mortal(), hosted_mortal()):
        agent = small_ppo(env)
        moments = list(player(agent, first_policy(agent), 0, PlayOptions())(0))
        assert [moment.ended for moment in moments] == [False] * 3 + [True]
        assert moments[-1].episodic_return == pytest.approx(80 / 3)
        assert np.shape(moments[1].obs) == (3, 3) and np.shape(moments[1].action) == (3,)


def test_rows_of_a_team_are_a_dataset(trained: Path) -> None:
    from jaxrl.runtime.datasets.collect import collect_dataset

    data = collect_dataset(trained, 60, policy="mix:0.5", num_envs=2)
    rows = data.rows()
    lengths = np.diff(np.append(np.asarray(data.starts), len(rows.valid))) - 1
    assert data.info.rows >= 60 and set(lengths.tolist()) == {1, 2, 3}
    returns = np.asarray(data.returns_to_go)[np.asarray(data.starts)]
    whole = {1: 1.0, 2: 43.0, 3: 36.0}
    assert all(total == whole[length] for length, total in zip(lengths[:5].tolist(), returns[:5].tolist(), strict=True))
    offline = jaxrl.make_dqn(PURE, data=data, updates=2, batch_size=4, model={"hidden_sizes": (4,)})
    _, metrics = jax.jit(offline.step, compiler_options=COMPILE_FAST)(offline.init(jax.random.key(0)), data)
    assert np.isfinite(float(metrics["losses/td_loss"])) and offline.steps_per_iteration == 2


@pytest.mark.slow
def test_stored_rows_are_loaded(tmp_path: Path) -> None:
    agent = small("dqn", PURE)
    state, step = agent.init(jax.random.key(0)), jax.jit(agent.step, compiler_options=COMPILE_FAST)
    for _ in range(3):
        state, _ = step(state)
    jaxrl.save_replay(tmp_path / "rows.npz", state)
    loaded = jaxrl.load_replay(tmp_path / "rows.npz", agent, agent.init(jax.random.key(1)))
    assert loaded is not None
    other = small("dqn", PURE, num_envs=2, buffer_size=240)
    with pytest.raises(ValueError, match="holds rows of 4 environments: build the agent with num_envs=4, not 2"):
        jaxrl.load_replay(tmp_path / "rows.npz", other, other.init(jax.random.key(1)))

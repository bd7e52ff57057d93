"""Learning from a dataset and from collected rows at once: draws of a batch, runs that go on from an offline one, resuming."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.options import Prioritized
from jaxrl.replay.dataset import Dataset
from jaxrl.replay.dataset_replay import WithData, mixed_replay
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.transitions import example_row, replay_rows, transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.collect import example_rollout
from jaxrl.runtime.logs.dip import dip
from jaxrl.runtime.logs.records import EVALUATION_RETURN
from jaxrl.runtime.training_loop.reporting import dip_in_words
from jaxrl.training import evaluation_key
from tests.helpers.agents import ALGORITHMS, algorithms, assert_bit_equal, tiny
from tests.helpers.datasets import random_dataset
from tests.helpers.hosted import hosted

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
ONLINE = ("dqn", "sac", "td3", "ddpg", "crossq", "mpo", "iql", "awr")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return random_dataset("Pendulum-v1")


def online(algorithm: str, data: Any, env: Any = "Pendulum-v1", **settings: Any) -> Any:
    keywords = {name: value for name, value in tiny(algorithm).settings.items() if name != "learning_starts"}
    return ALGORITHMS[algorithm].load().make(env, data=data, online=True, **{**keywords, **settings})


# ----------------------------------------------------------------------------------------------------------------------- draws


def filled(replay: Any, env: Any, value: float) -> Any:
    """Return the replay's state after ten rows of two environments, with this reward."""
    agent = jaxrl.make_td3(env, model={"hidden_sizes": (8,)})
    policy = agent.algorithm.policy(agent.init(jax.random.key(0)).learner)
    shapes = jax.eval_shape(lambda: replay_rows(example_rollout(agent.algorithm, agent.env, policy, 2, 10)))
    rows = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)._replace(
        reward=jnp.full((10, 2), value), terminated=jnp.zeros((10, 2), bool)
    )
    return replay.add(replay.init(example_row(agent.env.observation_space, agent.env.action_space)), rows, jnp.arange(2))


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("n_step", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_each_batch_has_its_share_of_both(ratio: float, n_step: int, data: Dataset) -> None:
    """Rows of the ring have the reward 7, which no row of the data has."""
    ring = uniform_replay(20, 2, 10, before=1, after=n_step)
    replay = mixed_replay(ring, ratio, before=1, after=n_step)
    state = WithData(filled(ring, "Pendulum-v1", 7.0), data)
    batches, size = 5, 16

    @jit
    def drawn(state: Any, key: Any) -> Any:
        draw = replay.draw(state, key, batches * size)
        return draw, transitions(replay, state, draw, 0.9, n_step), replay.take(state, draw, 0)

    draw, batch, rows = drawn(state, jax.random.key(1))
    mine = np.asarray(rows.reward).reshape(batches, size) == 7.0
    assert (mine.sum(1) == size - ratio * size).all() and bool(draw.valid.all())
    stored = jax.device_get(data.rows())
    of_data = ~mine.ravel()
    at = np.asarray(draw.row)[of_data]
    np.testing.assert_array_equal(rows.obs[of_data], stored.obs[at])
    if n_step == 1:
        np.testing.assert_array_equal(batch.next_inputs.obs[of_data], stored.obs[at + 1])
        np.testing.assert_array_equal(batch.reward[of_data], stored.reward[at])
    else:
        np.testing.assert_allclose(batch.reward[mine.ravel()], 7 * (1 + 0.9 + 0.81), rtol=1e-6)
        np.testing.assert_allclose(batch.discount[mine.ravel()], 0.9**3, rtol=1e-6)


@pytest.mark.slow
def test_priorities_are_those_of_the_ring(data: Dataset) -> None:
    ring = prioritised_replay(priority_exponent=1.0)(20, 2, 10, before=1, after=1)
    replay = mixed_replay(ring, 0.5, before=1, after=1)
    assert replay.prioritised
    state = WithData(filled(ring, "Pendulum-v1", 7.0), data)
    draw = replay.draw(state, jax.random.key(0), 32)
    rows = replay.take(state, draw, 0)
    mine = np.asarray(rows.reward) == 7.0
    assert mine.sum() == 16 and (np.asarray(draw.weight)[~mine] == 1).all()
    chosen = np.asarray(draw.row)[mine][0], np.asarray(draw.env)[mine][0]
    is_it = mine & (np.asarray(draw.row) == chosen[0]) & (np.asarray(draw.env) == chosen[1])
    state = replay.update(state, draw, jnp.where(is_it, 1000.0, 1e-6))
    for seed in range(3):
        draw = replay.draw(state, jax.random.key(seed), 32)
        mine = np.asarray(replay.take(state, draw, 0).reward) == 7.0
        again = (np.asarray(draw.row)[mine] == chosen[0]) & (np.asarray(draw.env)[mine] == chosen[1])
        assert mine.sum() == 16 and again.mean() > 0.5


# ------------------------------------------------------------------------------------------------------------------------ steps


@algorithms(["sac"], ONLINE)
def test_algorithms_with_replay_learn_from_both(algorithm: str) -> None:
    env = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    data = random_dataset(env)
    agent = online(algorithm, data, env)
    assert agent.online and not agent.is_offline and agent.num_envs == 4 and agent.algorithm.warmup_iterations == 0
    state = agent.init(jax.random.key(0))
    after, metrics = jit(agent.step)(state, data)
    assert int(after.learner.replay.ring.size) == agent.rollout_length and after.learner.replay.data == ()
    assert float(metrics["charts/valid_rows"].sum) == agent.steps_per_iteration
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(after.learner.params))
    with pytest.raises(TypeError, match=r"its step takes the Dataset"):
        agent.step(state)


def test_the_policy_acts_from_the_first_row(data: Dataset) -> None:
    """Without data, actions are random until the first update; here a policy may continue another run."""
    for algorithm in ("td3", "sac", "iql"):
        agent = online(algorithm, data)
        policy = agent.algorithm.policy(agent.init(jax.random.key(0)).learner)
        at_random = policy.exploration[0] if algorithm == "td3" else policy.exploration
        assert not bool(at_random)


@pytest.mark.slow
def test_seeds_share_the_data(data: Dataset) -> None:
    agent = online("td3", data)
    states = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), 3))
    program = jax.make_jaxpr(jax.vmap(agent.step, in_axes=(0, None)))(states, data)
    assert max((np.asarray(x).nbytes for x in program.consts), default=0) <= 1024
    assert [v.aval.shape for v in program.jaxpr.invars].count(data.records.words.shape) == 1
    train = jaxrl.make_train(agent, 16)
    keys = jax.random.split(jax.random.key(0), 2)
    after, _ = jit(jax.vmap(train, in_axes=(0, None, None, None)))(keys, None, None, data)
    assert after.iteration.tolist() == [2, 2]


# ------------------------------------------------------------------------------------------------------------------------- runs


def settings(**more: Any) -> dict[str, Any]:
    return {"quiet": True, "seeds": 2, "eval_episodes": 2, "tensorboard": False, **more}


@pytest.mark.slow
@pytest.mark.parametrize("host", [False, True])
def test_a_run_goes_on_from_an_offline_one_and_is_resumed_bit_for_bit(host: bool, data: Dataset, tmp_path: Path) -> None:
    """The first evaluation is that of the offline policy."""
    env = hosted(jaxrl.make_env("Pendulum-v1")) if host else "Pendulum-v1"
    sizes = {"num_envs", "rollout_length", "replay_ratio", "buffer_size", "learning_starts"}
    keywords = {name: value for name, value in tiny("td3").settings.items() if name not in sizes}
    before = jaxrl.make_td3(env, data=data, updates=4, **keywords)
    learnt, _ = jaxrl.run(before, 8, out=tmp_path / "offline", **settings())
    file = tmp_path / "data.npz"
    jaxrl.save_dataset(file, data)
    agent = online("td3", jaxrl.load_dataset(file), env)
    source = {"init_from": tmp_path / "offline", "init_which": "last"}
    straight, history = jaxrl.run(agent, 160, **settings(eval_every=1), **source)
    assert int(history["rows"][0]) == 0 and history["env_steps"][-1].tolist() == [160, 160]
    for i in range(2):
        policy = before.algorithm.policy(jax.tree.map(lambda x, i=i: x[i], learnt).learner)
        played = jaxrl.evaluate(before, policy, evaluation_key(i, 0), 2).episodic_return
        assert host or float(history[EVALUATION_RETURN][0][i]) == pytest.approx(float(np.mean(played)), rel=1e-4)
    jaxrl.run(agent, 80, out=tmp_path / "run", **settings(eval_every=1), **source)
    parts = {"env": env} if host else {}
    resumed, _ = jaxrl.resume(tmp_path / "run", total_steps=160, quiet=True, **parts)
    if not host:  # episodes of host environments cannot be restored
        assert_bit_equal(resumed, straight)
    assert resumed.iteration.tolist() == [20, 20]
    assert np.isfinite(jaxrl.load_policy(tmp_path / "run", which="last")(np.zeros(3, np.float32))).all()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"overlap": True}])
def test_host_environments_are_stepped_in_other_ways(workers: dict[str, Any], data: Dataset) -> None:
    agent = online("iql", data, "envpool:Pendulum-v1" if "num_workers" in workers else hosted(jaxrl.make_env("Pendulum-v1")))
    states, history = jaxrl.run(agent, 64, **settings(), **workers)
    assert states.iteration.tolist() == [8, 8] and np.isfinite(history["losses/td_loss"][-1]).all()


def test_the_lowest_score_of_the_first_tenth_is_the_dip() -> None:
    scores = np.array([[10.0, 20.0], [8.0, 10.0], [np.nan, np.nan], [12.0, 18.0], [1.0, 1.0], [30.0, 30.0]])
    history = {EVALUATION_RETURN: scores, "rows": np.array([0, 4, 6, 10, 20, 100])}
    assert dip(history, 100) == (15.0, 9.0)
    assert dip_in_words(history, 100) == "dip in the first tenth from 15.0 to 9.0"
    assert dip(history, 300) == (15.0, 1.0)
    higher = {**history, EVALUATION_RETURN: scores + np.arange(6)[:, None] * 20}
    assert dip(higher, 100) == (15.0, 15.0)
    late = {name: values[3:] for name, values in history.items()}
    assert dip(late, 100) is None and dip({}, 100) is None and dip(history, 30) is None
    assert "dip unknown" in dip_in_words(late, 100)


@pytest.mark.slow
def test_the_summary_has_it(data: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    jaxrl.run(online("iql", data), 160, **settings(quiet=False, eval_every=1))
    assert "; dip in the first tenth from -" in capsys.readouterr().out


# -------------------------------------------------------------------------------------------------------------------- refusals


def test_what_has_no_effect_or_does_not_fit(data: Dataset) -> None:
    with pytest.raises(ValueError, match=r"online=True has no effect without data="):
        jaxrl.make_td3("Pendulum-v1", online=True)
    with pytest.raises(ValueError, match=r"learning_starts=64 has no effect with online=True: leave it out"):
        online("td3", data, learning_starts=64)
    with pytest.raises(ValueError, match=r"updates=7 has no effect with online=True"):
        online("td3", data, updates=7)
    with pytest.raises(ValueError, match=r"mixing_ratio=0.3 of batch_size=32 is 9.6 rows, which must be a whole number"):
        online("td3", data, mixing_ratio=0.3)
    with pytest.raises(ValueError, match=r"replay=Prioritized\(.*\) has no effect with mixing_ratio=1"):
        online("td3", data, mixing_ratio=1.0, replay=Prioritized())
    with pytest.raises(ValueError, match=r"mixing_ratio=0.25 has no effect without online=True"):
        jaxrl.make_td3("Pendulum-v1", data=data, mixing_ratio=0.25)
    with pytest.raises(ValueError, match=r"mixing_ratio=0.25 has no effect without online=True"):
        jaxrl.make_td3("Pendulum-v1", mixing_ratio=0.25)
    with pytest.raises(ValueError, match=r"axis_name='d' cannot be used with data="):
        online("td3", data, axis_name="d")
    with pytest.raises(ValueError, match=r"devices_per_seed=2 cannot be used with data="):
        jaxrl.run(online("td3", data), 8, **settings(devices_per_seed=2))
    with pytest.raises(ValueError, match=r"online=True learns on one device of one process"):
        jaxrl.run(online("sac", data, "envpool:Pendulum-v1"), 8, **settings(scheme="ddppo", num_workers=2))
    with pytest.raises(TypeError, match=r"this agent was built without data=…, so its step takes the state alone"):
        agent = jaxrl.make_td3("Pendulum-v1")
        agent.step(agent.init(jax.random.key(0)), data)

"""Learning from a dataset: one copy for all seeds, every algorithm with replay, runs, resuming, and what has no effect."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.builder.spec import build
from jaxrl.replay.dataset import Dataset, DatasetInfo
from jaxrl.replay.dataset_replay import WithData, dataset_replay
from jaxrl.replay.options import Prioritized
from jaxrl.replay.transitions import example_row, transitions
from jaxrl.runtime.logs.records import EVALUATION_RETURN
from tests.helpers.agents import algorithms, assert_bit_equal, small
from tests.helpers.datasets import random_dataset
from tests.helpers.hosted import hosted

OFFLINE = ("dqn", "sac", "td3", "ddpg", "crossq", "mpo", "iql", "awr", "bc", "dt")
ENV = {"dqn": "CartPole-v1"}
SIZES = {"num_envs", "rollout_length", "replay_ratio", "buffer_size", "learning_starts"}


@pytest.fixture(scope="module")
def box_data() -> Dataset:
    return random_dataset("Pendulum-v1")


@pytest.fixture(scope="module")
def discrete_data() -> Dataset:
    return random_dataset("CartPole-v1")


def offline(algorithm: str, data: Any, env: Any = None, **settings: Any) -> Any:
    """Return a small agent that learns from data; sizes of collection have no effect there."""
    from tests.helpers.agents import ALGORITHMS, tiny

    chosen = {name: value for name, value in tiny(algorithm).settings.items() if name not in SIZES}
    keywords = {**chosen, "updates": 6 if algorithm == "crossq" else 4, **settings}
    return ALGORITHMS[algorithm].load().make(env or ENV.get(algorithm, "Pendulum-v1"), data=data, **keywords)


@algorithms(["sac", "dqn"], OFFLINE)
def test_a_spec_takes_other_numbers_of_rows_and_updates(algorithm: str, box_data: Dataset, discrete_data: Dataset) -> None:
    """Settings of collection, which have no effect, are open in it."""
    agent = offline(algorithm, discrete_data if algorithm == "dqn" else box_data)
    assert {agent.spec["settings"].get(name) for name in SIZES} == {None} and jaxrl.build(agent.spec).spec == agent.spec
    changed = jaxrl.build(agent.spec, updates=12, batch_size=8)
    bound = changed.algorithm.learn.args  # type: ignore[union-attr]
    config = next(arg.config for arg in bound if isinstance(arg, ReplaySetup))
    assert (changed.steps_per_iteration, config.updates_per_iteration, config.batch_size) == (12, 12, 8)


@algorithms(["sac", "dqn"], OFFLINE)
def test_algorithms_learn_from_data(algorithm: str, box_data: Dataset, discrete_data: Dataset) -> None:
    """A step is so many updates from rows of the data. Between steps the state has no rows."""
    data = discrete_data if algorithm == "dqn" else box_data
    agent = offline(algorithm, data)
    updates = 6 if algorithm == "crossq" else 4
    assert (agent.num_envs, agent.steps_per_iteration) == (1, updates) and agent.data is data
    state = agent.init(jax.random.key(0))
    after, metrics = jax.jit(agent.step)(state, data)
    assert int(after.learner.version) == int(after.iteration) == 1 and float(metrics["charts/valid_rows"].sum) == updates
    assert after.learner.replay == WithData((), ())
    before, now = (jax.tree.leaves(x.learner.params) for x in (state, after))
    assert any(bool((x != y).any()) for x, y in zip(before, now, strict=True))
    assert all(bool(jnp.isfinite(x).all()) for x in now)
    assert sum(x.size for x in jax.tree.leaves(after)) < sum(x.size for x in jax.tree.leaves(after.learner)) + 20


def test_draws_are_transitions_of_the_data(box_data: Dataset) -> None:
    agent = offline("td3", box_data)
    replay, gamma = dataset_replay(before=1, after=1), 0.9
    state = WithData((), box_data)
    draw = replay.draw(state, jax.random.key(1), 64)
    batch = transitions(replay, state, draw, gamma)
    rows = jax.device_get(box_data.rows())
    at = np.asarray(draw.row)
    np.testing.assert_array_equal(batch.inputs.obs, rows.obs[at])
    np.testing.assert_array_equal(batch.next_inputs.obs, rows.obs[at + 1])
    np.testing.assert_array_equal(batch.reward, rows.reward[at])
    np.testing.assert_allclose(batch.discount, gamma * ~rows.terminated[at])
    assert jax.tree.structure(rows) == jax.tree.structure(example_row(agent.env.observation_space, agent.env.action_space))


def test_seeds_share_the_data(box_data: Dataset) -> None:
    """The vmapped step has the data once, unbatched, and holds no constant of more than 1 kB."""
    agent = offline("td3", box_data)
    states = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), 3))
    step = jax.vmap(agent.step, in_axes=(0, None))
    program = jax.make_jaxpr(step)(states, box_data)
    assert max((np.asarray(x).nbytes for x in program.consts), default=0) <= 1024
    shape = box_data.records.words.shape
    assert [v.aval.shape for v in program.jaxpr.invars].count(shape) == 1
    both, _ = jax.jit(step)(states, box_data)
    for i in range(3):
        alone, _ = jax.jit(agent.step)(jax.tree.map(lambda x, i=i: x[i], states), box_data)
        for x, y in zip(jax.tree.leaves(both.learner.params), jax.tree.leaves(alone.learner.params), strict=True):
            np.testing.assert_allclose(x[i], y, rtol=2e-4, atol=2e-5)


def test_memory_of_seeds_is_that_of_their_parameters() -> None:
    data = random_dataset("Pendulum-v1", rows=20_000, length=200)
    agent = offline("td3", data, model={"hidden_sizes": (8,)})
    step = jax.vmap(agent.step, in_axes=(0, None))

    def needed(seeds: int) -> tuple[int, int]:
        states = jax.eval_shape(jax.vmap(agent.init), jax.random.split(jax.random.key(0), seeds))
        found = jax.jit(step, donate_argnums=0).lower(states, data).compile().memory_analysis()
        return found.temp_size_in_bytes, sum(x.size * 4 for x in jax.tree.leaves(states.learner.params))

    rows = sum(x.nbytes for x in jax.tree.leaves(data.records))
    (one, _), (eight, parameters) = needed(1), needed(8)
    assert eight < one + 40 * parameters and eight < rows  # no copy of the data


def run_settings(**more: Any) -> dict[str, Any]:
    return {"quiet": True, "seeds": 2, "eval_episodes": 2, "tensorboard": False, **more}


@pytest.mark.parametrize("host", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_is_resumed_bit_for_bit(host: bool, tmp_path: Path) -> None:
    env = hosted(jaxrl.make_env("Pendulum-v1")) if host else "Pendulum-v1"
    data = random_dataset("Pendulum-v1")
    jaxrl.save_dataset(tmp_path / "data.npz", data)
    data = jaxrl.load_dataset(tmp_path / "data.npz")
    agent = offline("td3", data, env)
    straight, history = jaxrl.run(agent, 16, **run_settings())
    assert history["env_steps"][-1].tolist() == [16, 16] and np.isfinite(history[EVALUATION_RETURN][-1]).all()
    jaxrl.run(agent, 8, out=tmp_path / "run", **run_settings())
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    described = config["agent"]["parts"]["data"]["dataset"]
    assert described["digest"] == data.info.digest and described["path"] == str(tmp_path / "data.npz")
    parts = {"env": env} if host else {}
    resumed, _ = jaxrl.resume(tmp_path / "run", total_steps=16, quiet=True, **parts)
    assert_bit_equal(resumed, straight)
    policy = jaxrl.load_policy(tmp_path / "run", which="last")
    (tmp_path / "data.npz").unlink()
    assert jaxrl.load_policy(tmp_path / "run", which="last")(np.zeros(3, np.float32)) == policy(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"the dataset of the run, .*data\.npz, cannot be read .*: pass the dataset again"):
        jaxrl.resume(tmp_path / "run", total_steps=24, quiet=True, **parts)
    longer, _ = jaxrl.resume(tmp_path / "run", total_steps=24, quiet=True, data=data, **parts)
    assert longer.iteration.tolist() == [6, 6]


def test_another_dataset_is_refused(tmp_path: Path, box_data: Dataset) -> None:
    file = tmp_path / "data.npz"
    jaxrl.save_dataset(file, box_data)
    agent = offline("td3", jaxrl.load_dataset(file))
    jaxrl.run(agent, 4, out=tmp_path / "run", **run_settings(eval_every=0))
    jaxrl.save_dataset(file, random_dataset("Pendulum-v1", rows=100))
    with pytest.raises(ValueError, match=r"data\.npz is not the dataset of the run any more: its digest is"):
        jaxrl.resume(tmp_path / "run", total_steps=8, quiet=True)
    state = agent.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"this is another dataset than the agent's"):
        agent.step(state, random_dataset("Pendulum-v1", rows=100))
    with pytest.raises(TypeError, match=r"its step takes the Dataset: step\(state, agent.data\)"):
        agent.step(state)


def test_a_run_goes_on_with_a_dataset_that_has_moved(tmp_path: Path, box_data: Dataset) -> None:
    jaxrl.save_dataset(tmp_path / "data.npz", box_data)
    jaxrl.run(offline("td3", jaxrl.load_dataset(tmp_path / "data.npz")), 4, out=tmp_path / "run", **run_settings(eval_every=0))
    (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
    moved = jaxrl.load_dataset(tmp_path / "moved.npz")
    states, _ = jaxrl.run(offline("td3", moved), 8, out=tmp_path / "run", **run_settings(eval_every=0))
    assert states.iteration.tolist() == [2, 2]
    other = offline("td3", random_dataset("Pendulum-v1", rows=100))
    with pytest.raises(FileExistsError, match=r"agent\.parts\.data is .* there and .* here"):
        jaxrl.run(other, 8, out=tmp_path / "run", **run_settings(eval_every=0))


def test_settings_that_only_data_give_an_effect() -> None:
    for algorithm, name in (("td3", "normalize_observations"), ("iql", "scale_rewards"), ("ddpg", "normalize_observations")):
        with pytest.raises(ValueError, match=f"{name}=False has no effect without data="):
            small(algorithm, "Pendulum-v1", **{name: False})
    with pytest.raises(ValueError, match="updates=7 has no effect without data="):
        small("dqn", "CartPole-v1", updates=7)


def test_a_run_from_memory_says_how_to_go_on(tmp_path: Path, box_data: Dataset) -> None:
    jaxrl.run(offline("td3", box_data), 4, out=tmp_path / "run", **run_settings(eval_every=0))
    with pytest.raises(ValueError, match=r"learns from a dataset that was made in memory: pass the dataset again"):
        jaxrl.resume(tmp_path / "run", total_steps=8, quiet=True)
    states, _ = jaxrl.resume(tmp_path / "run", total_steps=8, quiet=True, data=box_data)
    assert states.iteration.tolist() == [2, 2]


def test_make_train_takes_the_data(box_data: Dataset) -> None:
    agent = offline("td3", box_data)
    train = jaxrl.make_train(agent, 12)
    keys = jax.random.split(jax.random.key(0), 2)
    states, metrics = jax.jit(jax.vmap(train, in_axes=(0, None, None, None)))(keys, None, None, box_data)
    assert states.iteration.tolist() == [3, 3] and np.shape(metrics["losses/td_loss"].sum)[:2] == (2, 3)


def test_a_spec_describes_the_data(box_data: Dataset) -> None:
    agent = offline("td3", box_data)
    again = build(agent.spec)
    assert isinstance(again.data, DatasetInfo) and again.data == box_data.info and again.spec == agent.spec
    assert "data" not in small("td3", "Pendulum-v1").spec["parts"]


def test_what_has_no_effect_or_does_not_fit(box_data: Dataset, discrete_data: Dataset) -> None:
    def refused(kind: type[Exception], match: str, data: Any = box_data, algorithm: str = "td3", **settings: Any) -> None:
        with pytest.raises(kind, match=match):
            offline(algorithm, data, **settings)

    for name, value in {
        "num_envs": 2,
        "rollout_length": 8,
        "replay_ratio": 2.0,
        "buffer_size": 500,
        "learning_starts": 7,
    }.items():
        refused(ValueError, rf"{name}={value} has no effect with data=", **{name: value})
    refused(ValueError, r"replay=Prioritized\(.*\) has no effect with data=", replay=Prioritized())
    refused(ValueError, r"replay=.* has no effect with data=…, whose rows are drawn", replay=lambda *a, **k: None)
    refused(ValueError, r"the dataset has observations Box\(4\) float32, and gymnax:Pendulum-v1 has Box\(3\)", data=discrete_data)
    refused(TypeError, r"data='x' must be a Dataset, as jaxrl.load_dataset\(file\) returns", data="x")
    refused(ValueError, "axis_name='d' cannot be used with data=", axis_name="d")
    refused(ValueError, r"policy_delay=3 must divide the 4 updates", policy_delay=3)
    with pytest.raises(ValueError, match="R2D2 learns from sequences"):
        jaxrl.make_r2d2("CartPole-v1", data=discrete_data)
    agent = offline("td3", box_data)
    for settings in ({"sampler": "async"}, {"overlap": True}, {"num_workers": 2}, {"scheme": "impala"}):
        with pytest.raises(ValueError, match="has no effect with data="):
            jaxrl.run(agent, 4, **run_settings(**settings))
    with pytest.raises(ValueError, match="devices_per_seed=2 cannot be used with data="):
        jaxrl.run(agent, 4, **run_settings(devices_per_seed=2))


def test_a_description_with_other_bounds_of_observations_fits(box_data: Dataset) -> None:
    """Files in D4RL's layout do not know the bounds."""
    info = box_data.info
    spaces = {**info.spaces, "observation": {**info.spaces["observation"], "low": "-inf", "high": "inf"}}
    agent = offline("td3", dataclasses.replace(info, spaces=spaces))
    assert agent.data == info

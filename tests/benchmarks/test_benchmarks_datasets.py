"""Datasets of the benchmarks: recipes, what is made again and what is not, records, and scores of what learns from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from benchmarks import datasets, offline_scores, pictures, recipes, scores, thin
from benchmarks.__main__ import main
from benchmarks.asked_returns import asked_returns, rank_correlation
from benchmarks.experiment import Experiment
from benchmarks.experiments import EXPERIMENTS
from benchmarks.first_values import first_values, overestimation
from benchmarks.recipes import RECIPES, Part, Training
from jaxrl.algorithms.presets.offline import OFFLINE
from jaxrl.training import evaluate_pure
from tests.helpers.datasets import random_dataset

TINY = Training(
    "tiny",
    "make_sac",
    "Pendulum-v1?max_steps_in_episode=10",
    {
        "model": {"hidden_sizes": (4,)},
        "num_envs": 2,
        "rollout_length": 8,
        "learning_starts": 32,
        "batch_size": 8,
        "replay_ratio": 8,
        "buffer_size": 512,
    },
    96,
    seed=1,
)
SETS = {
    "tiny-medium": (Part(TINY, 64, "policy", 32),),
    "tiny-replay": (Part(TINY, 96, "replay"),),
    "tiny-mixed": (Part(TINY, 64, "random", 16), Part(TINY, 96, "policy", 16)),
}
TRAINED = {"stage": 96, "greedy_return": -60.5, "train_seconds": 0.5}


@pytest.fixture
def tiny_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (recipes, datasets):
        monkeypatch.setattr(module, "RECIPES", dict(SETS))


# --------------------------------------------------------------------------------------------------------------------- recipes


def test_recipes() -> None:
    names = {"pendulum": "random medium replay mixed expert", "cartpole": "random replay mixed"}
    names["halfcheetah"] = "medium replay medium-expert"
    assert set(RECIPES) == {f"{env}-{name}" for env, found in names.items() for name in found.split()}
    for parts in RECIPES.values():
        assert all(part.stage <= part.training.total_steps for part in parts)
        assert len({part.training for part in map(_hashable, parts)}) == 1
        assert all((part.rows == 0) == (part.source == "replay") for part in parts)
        assert sum(part.rows for part in parts) in {0, 50_000, 100_000}
    halves = RECIPES["halfcheetah-medium-expert"]
    assert [(part.stage, part.rows) for part in halves] == [(52_000, 50_000), (300_000, 50_000)]
    assert recipes.stages_of(recipes.HALFCHEETAH) == [52_000, 100_000, 300_000]


def _hashable(part: Part) -> Part:
    return part._replace(training=part.training.name)  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [recipes.PENDULUM, recipes.CARTPOLE], ids=lambda x: x.name)
def test_buffers_hold_the_rows_of_replay_datasets(training: Training) -> None:
    agent = getattr(jaxrl, training.builder)(training.env, **training.settings)
    stages = [part.stage for parts in RECIPES.values() for part in parts if part.source == "replay" and part.training == training]
    assert stages and max(stages) <= agent.spec["settings"]["buffer_size"]


# ---------------------------------------------------------------------------------------------------------------------- making


def test_only_what_is_missing_is_made(
    tmp_path: Path, tiny_recipes: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = list[tuple[str, int]]()

    def rows_of(part: Part, run: Path, number: int) -> Any:
        made.append((part.source, number))
        return random_dataset(TINY.env, rows=100 + 20 * part.stage)

    monkeypatch.setattr(datasets, "rows_of", rows_of)
    monkeypatch.setattr(datasets, "train_to", lambda training, stage, runs, quiet: (runs / "run", TRAINED))
    folder, results = tmp_path / "sets", tmp_path / "results"
    command = ["datasets", "tiny-mixed", "tiny-medium", "--out", str(folder), "--results", str(results)]
    monkeypatch.setattr("benchmarks.arguments.RECIPES", SETS)
    assert main(command) == 0 and made == [("random", 0), ("policy", 1), ("policy", 0)]
    shown = capsys.readouterr()
    assert "tiny-mixed, 1 of 2: making" in shown.err and "| tiny-medium |" in shown.out
    assert main(command) == 0 and len(made) == 3 and "exists with this recipe" in capsys.readouterr().err

    recorded = json.loads((results / "datasets.json").read_text())
    assert list(recorded) == ["tiny-medium", "tiny-mixed"]  # in the order of the recipes
    record, data = recorded["tiny-mixed"], jaxrl.load_dataset(folder / "tiny-mixed.npz")
    assert (record["digest"], record["rows"], record["episodes"]) == (data.info.digest, data.info.rows, data.info.episodes)
    assert data.info.rows == sum(random_dataset(TINY.env, rows=100 + 20 * stage).info.rows for stage in (64, 96))
    assert record["parts"][0] == {"source": "random", "rows": record["parts"][0]["rows"]}
    assert record["parts"][1]["greedy_return"] == -60.5 and {"cpu", "cores"} <= record["hardware"].keys()
    assert {"jax", "jaxrl"} <= record["versions"].keys() and record["seconds"] > 0 and record["date"]

    monkeypatch.setitem(datasets.RECIPES, "tiny-medium", (SETS["tiny-medium"][0]._replace(rows=64),))
    (folder / "tiny-mixed.npz").unlink()
    assert main(command) == 0 and len(made) == 6


def test_statistics_are_of_episodes() -> None:
    data = random_dataset("Pendulum-v1", rows=200, length=20)
    rows, found = data.rows(), datasets.statistics_of(data)
    returns = np.where(rows.valid, rows.reward, 0).reshape(10, 20).sum(1)  # 19 rewards, and the row after them
    names = ("mean", "std", "min", "max")
    np.testing.assert_allclose([found[name] for name in names], [getattr(returns, name)() for name in names], rtol=1e-5)
    np.testing.assert_allclose(found["quantiles"]["0.25"], np.quantile(returns, 0.25), rtol=1e-5)
    assert list(found["quantiles"]) == ["0.05", "0.25", "0.5", "0.75", "0.95"]
    json.dumps(found)


def test_joined_datasets_keep_their_episodes() -> None:
    first, second = random_dataset("Pendulum-v1", rows=100), random_dataset("Pendulum-v1", rows=60)
    both = datasets.joined([first, second])
    assert (both.info.rows, both.info.episodes) == (95 + 57, 8)
    np.testing.assert_array_equal(np.asarray(both.rows().obs), np.concatenate([first.rows().obs, second.rows().obs]))
    assert datasets.joined([second, first]).info.digest != both.info.digest


def test_a_stage_goes_on_from_a_copy_of_the_one_before(
    tmp_path: Path, tiny_recipes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = list[tuple[int, str]]()

    def train(training: Training, stage: int, run: Path, quiet: bool) -> dict[str, Any]:
        run.mkdir(parents=True, exist_ok=True)
        file = run / "stages"
        trained.append((stage, file.read_text() if file.exists() else ""))
        file.write_text(trained[-1][1] + f"{stage};")
        return TRAINED | {"stage": stage}

    monkeypatch.setattr(datasets, "train", train)
    run, reached = datasets.train_to(TINY, 96, tmp_path, quiet=True)
    assert trained == [(64, ""), (96, "64;")] and (run, reached["stage"]) == (tmp_path / "tiny-96", 96)
    assert (tmp_path / "tiny-64" / "stages").read_text() == "64;"  # still that of the earlier stage
    assert datasets.train_to(TINY, 64, tmp_path, quiet=True)[1]["stage"] == 64 and len(trained) == 2
    datasets.train_to(TINY._replace(seed=2), 96, tmp_path, quiet=True)  # another recipe starts anew
    assert trained[2:] == [(64, ""), (96, "64;")]
    (tmp_path / "tiny-96.json").unlink()  # interrupted
    datasets.train_to(TINY._replace(seed=2), 96, tmp_path, quiet=True)
    assert trained[4:] == [(96, "64;96;")]


@pytest.mark.slow
def test_tiny_datasets(tmp_path: Path, tiny_recipes: None) -> None:
    recorded = datasets.make([], tmp_path, tmp_path / "results", quiet=True)
    replay, medium, mixed = (
        jaxrl.load_dataset(tmp_path / f"tiny-{name}.npz", TINY.env) for name in ("replay", "medium", "mixed")
    )
    assert replay.info.rows + replay.info.episodes == 96 and replay.info.episodes == 2 * 5  # in steps of 10 and a reset
    assert medium.info.rows >= 32 and mixed.info.rows >= 2 * 16
    assert recorded["tiny-replay"]["parts"][0]["stage"] == 96 and recorded["tiny-medium"]["parts"][0]["stage"] == 64
    spread = [float(np.std(np.asarray(data.rows().action)[np.asarray(data.rows().valid)])) for data in (replay, mixed)]
    assert min(spread) > 0.1
    for stage in (64, 96):
        assert jaxrl.load_policy(tmp_path / "runs" / f"tiny-{stage}", which="last").step == stage // 16


# ---------------------------------------------------------------------------------------------------------------------- scores


def test_experiments_name_datasets() -> None:
    found = {name: x for name, x in EXPERIMENTS.items() if x.data}
    assert {"iql-pendulum-mixed", "td3bc-pendulum-mixed", "td3bc-halfcheetah-medium-expert"} <= set(found)
    assert set(found) == {bar.name for bar in offline_scores.BARS} | {preset.name for preset in OFFLINE}
    assert all(RECIPES[preset.dataset][0].training.env == preset.env for preset in OFFLINE)
    for bar in offline_scores.BARS:
        assert RECIPES[bar.data][0].training.env == bar.task.env and bar.variant in offline_scores.VARIANTS
    names = ("td3bc-pendulum-replay", "td3bc-halfcheetah-medium-expert")
    assert [found[name].settings["cloning"]["alpha"] for name in names] == [40.0, 1.0]
    assert scores.describe(found["iql-pendulum-mixed"])["data"] == "pendulum-mixed"
    assert "data" not in scores.describe(EXPERIMENTS["ppo-cartpole"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["datasets", "pendulum-mix"], "Did you mean 'pendulum-mixed'?"),
        (["scores", "iql-pendulum-mixed"], "run 'python -m benchmarks datasets pendulum-mixed --out {data}' first"),
    ],
)
def test_what_is_missing_is_said(args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    found: Any
    try:
        found = main([*args, "--out", str(tmp_path), *(["--datasets", str(data)] if args[0] == "scores" else [])])
    except SystemExit as exit_:
        found = exit_.code
    assert found == 2 and message.format(data=data) in capsys.readouterr().err


def test_a_score_on_other_data_does_not_count(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "make_iql", "Pendulum-v1", {}, 100, 2, 0, data="tiny")
    spec = {"parts": {"data": {"dataset": {"digest": "1" * 64}}}}
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps({"experiment": scores.describe(experiment), "spec": spec}))
    assert scores.finished(path, experiment, tmp_path / "data") is not None  # there is no other
    (tmp_path / "data").mkdir()
    record = tmp_path / "data/tiny.json"
    for digest, counts in (("1" * 64, True), ("2" * 64, False)):
        record.write_text(json.dumps({"digest": digest}))
        assert (scores.finished(path, experiment, tmp_path / "data") is not None) == counts
    assert scores.finished(path, experiment._replace(data="other"), tmp_path / "data") is None


def test_what_learns_from_a_dataset_has_a_curve_of_evaluations() -> None:
    nan = np.nan
    steps, found = np.array([[0], [5], [10]]), np.array([[-1500.0], [nan], [-1234.56]])
    curve = thin.thin_history({"env_steps": steps, "evaluation/episodic_return": found})
    assert curve == {"env_steps": [0, 10], "evaluation/episodic_return": [[-1500], [-1235]]}
    np.testing.assert_array_equal(thin.full_history(curve)["evaluation/episodic_return"], [[-1500], [-1235]])
    online: Any = {"experiment": {}}
    offline: Any = {"experiment": {"data": "a"}}
    assert pictures.axis_labels([online]) == ("environment steps per seed", "training return")
    assert pictures.axis_labels([offline, offline]) == ("updates per seed", "greedy return")
    assert "updates" in pictures.axis_labels([online, offline])[0]


@pytest.mark.slow
def test_a_tiny_score_on_a_dataset(tmp_path: Path) -> None:
    settings = {"model": {"hidden_sizes": (4,)}, "batch_size": 8, "updates": 5}
    env = "Pendulum-v1?max_steps_in_episode=10"
    experiment = Experiment("tiny", "make_iql", env, settings, 50, 2, -1e9, episodes=4, data="tiny")
    data = random_dataset(env)
    jaxrl.save_dataset(tmp_path / "tiny.npz", data)
    folders: Any = {"out": tmp_path / "out", "work": tmp_path / "work", "datasets": tmp_path}
    result = scores.run_experiment(experiment, **folders, quiet=True)
    assert result["passed"] and result["total_steps"] == 50 and len(result["scores"]) == 2
    assert result["history"]["env_steps"] == [0, 10, 20, 30, 40, 50]
    described = result["spec"]["parts"]["data"]["dataset"]
    assert (described["digest"], described["path"]) == (data.info.digest, "datasets/tiny.npz")
    assert scores.run_experiment(experiment, **folders, quiet=True) == json.loads((tmp_path / "out/tiny.json").read_text())
    pictures.draw([result], tmp_path / "iql.png")
    assert (tmp_path / "iql.png").stat().st_size > 1000


# ---------------------------------------------------------------------------------------------------------------------- values


@pytest.mark.slow
def test_first_values() -> None:
    agent = jaxrl.make_sac("Pendulum-v1?max_steps_in_episode=10", model={"hidden_sizes": (8,)}, gamma=0.5)
    states = jax.jit(jax.vmap(agent.init))(jax.random.split(jax.random.key(3), 2))
    undiscounted = states._replace(
        learner=states.learner._replace(hyperparams=states.learner.hyperparams._replace(gamma=jnp.ones(2)))
    )
    found = first_values(agent, undiscounted, 16)
    evaluated = [
        evaluate_pure(agent, jax.tree.map(lambda x, i=i: x[i], undiscounted), jax.random.key(0), 16).episodic_return.mean()
        for i in range(2)
    ]
    np.testing.assert_allclose(found["returned"], evaluated, rtol=1e-5)
    assert found["estimated"] == pytest.approx(first_values(agent, states, 16)["estimated"])

    constant = jax.tree.map(jnp.zeros_like, states.learner.params.critic)
    zero = states._replace(learner=states.learner._replace(params=states.learner.params._replace(critic=constant)))
    found = first_values(agent, zero, 16)
    assert found["estimated"] == [0.0, 0.0] and all(sum(found["returned"]) / 2 * 2 > 10 * x for x in evaluated)
    assert overestimation(found) == 1.0 and overestimation({"estimated": [150, 50], "returned": [80, 80]}) == 0.25


def test_values_above_the_limit_do_not_pass() -> None:
    experiment = EXPERIMENTS["cql-pendulum-mixed"]
    assert experiment.asked == "mean ≥ -250, values at most 5% above"
    assert experiment.passes([-200.0], above=0.04)
    assert not any(experiment.passes([score], above=above) for score, above in ((-200.0, 0.06), (-200.0, np.nan), (-300.0, 0.0)))
    compared = EXPERIMENTS["sac-pendulum-mixed"]
    assert compared.asked == "for comparison" and compared.passes([-1e9], above=10.0)
    assert scores.describe(compared)["most_above"] == "any"


def test_returns_that_do_not_follow_those_asked_for_do_not_pass() -> None:
    experiment = EXPERIMENTS["dt-cartpole-mixed"]
    assert experiment.asked == "mean ≥ 450, rank correlation ≥ 0.9"
    assert experiment.passes([450.0], correlation=0.9) and not experiment.passes([500.0], correlation=0.8)
    assert rank_correlation({"asked": [1, 2, 3], "returned": [[1, 5], [2, 5], [3, 5]]}) == 1.0
    assert rank_correlation({"asked": [1, 2, 3], "returned": [[3, 5], [2, 5], [1, 5]]}) == -1.0


def test_asked_returns() -> None:
    data = random_dataset("Pendulum-v1?max_steps_in_episode=10", rows=80)
    agent = jaxrl.make_dt("Pendulum-v1?max_steps_in_episode=10", data=data, model={"core": None, "hidden_sizes": (4,)})
    states = jax.jit(jax.vmap(agent.init))(jax.random.split(jax.random.key(3), 2))
    found = asked_returns(agent, states, 4)
    returns = np.asarray(data.returns_to_go)[np.asarray(data.starts)]
    assert found["asked"][-1] == pytest.approx(returns.max(), rel=1e-5) and len(found["asked"]) == 10
    np.testing.assert_allclose(np.diff(found["asked"]), (returns.max() - returns.min()) / 10, rtol=1e-4)
    policy = agent.algorithm.policy(jax.tree.map(lambda x: x[1], states).learner)  # asks for the highest return
    expected = evaluate_pure(agent, policy, jax.random.key(0), 4).episodic_return.mean()
    assert np.shape(found["returned"]) == (10, 2) and found["returned"][-1][1] == pytest.approx(float(expected), rel=1e-5)

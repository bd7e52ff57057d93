"""The benchmark of scores: what must pass, settings, intervals, and runs that were interrupted or are finished."""

import json
import math

import numpy as np
import pytest

import jaxrl
from benchmarks import pictures, scores
from benchmarks.experiment import Experiment
from benchmarks.experiments import EXPERIMENTS
from benchmarks.protocol import ROOT
from jaxrl.algorithms.presets import PRESETS
from jaxrl.envs import make_env
from tests.helpers.agents import slow_unless
from tests.helpers.datasets import random_dataset

pytestmark = pytest.mark.expensive(50)


def test_what_must_pass():
    by_mean = EXPERIMENTS["ppo-cartpole"]
    assert by_mean.passes([490.0, 500.0]) and not by_mean.passes([489.0, 500.0])
    by_seeds = by_mean._replace(passing_seeds=2)
    assert by_seeds.passes([495.0, 500.0, 0.0]) and not by_seeds.passes([494.0, 500.0, 0.0])
    assert by_seeds.asked == "2 of 16 seeds ≥ 495"
    control, preset = EXPERIMENTS["ppo-cartpole-hidden-memoryless"], EXPERIMENTS["ppo-cartpole-hidden"]
    assert control.passes([240.0, 259.0]) and not control.passes([240.0, 261.0]) and control.asked == "mean ≤ 250"
    assert {"model": preset.settings["model"], **control.settings} == preset.settings and "model" not in control.settings
    assert (control.env, control.total_steps, control.num_seeds) == (preset.env, preset.total_steps, preset.num_seeds)


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow_unless(name not in PRESETS)) for name in EXPERIMENTS])
def test_the_settings_of_experiments_fit(name):
    experiment = EXPERIMENTS[name]
    agent = scores.build_agent(experiment, random_dataset(experiment.env) if experiment.data else None)
    assert agent.env.name == make_env(experiment.env).name
    assert agent.spec["settings"]["total_steps"] == 0  # the run sets it


SCORES = sorted((ROOT / "benchmarks/results/scores").glob("*.json"))
MISSED = set[str]()
"""Experiments whose committed score is worse than required. Their pages say so, and `tests/benchmarks/test_learning.py` leaves
them out."""


def test_which_committed_scores_are_worse_than_required():
    assert {path.stem for path in SCORES if json.loads(path.read_text(encoding="utf-8"))["passed"] is False} == MISSED


@pytest.mark.parametrize("path", SCORES, ids=lambda path: path.stem)
def test_the_committed_scores_are_of_these_experiments(path):
    """Also those of jaxrl 0.2, whose settings were written differently."""
    assert scores.finished(path, EXPERIMENTS[path.stem]) is not None, f"python -m benchmarks scores {path.stem}"


def test_a_score_of_another_agent_does_not_count():
    experiment = EXPERIMENTS["dqn-cartpole-c51"]
    changed = experiment._replace(settings={**experiment.settings, "head": "c51"})  # other returns
    assert scores.finished(ROOT / "benchmarks/results/scores/dqn-cartpole-c51.json", changed) is None


def test_a_score_may_be_of_the_last_episodes_of_training():
    """Rows that are not steps are resets: of 3 episodes, none, 2 and 4 for one seed, and of none, none, 1 and 2 for the other."""
    rows, resets = np.array([0, 10, 20, 30, 40]), np.array([[0, 0], [3, 0], [3, 0], [5, 1], [9, 3]])
    nan = np.nan
    returns = np.array([[nan, nan], [1.0, nan], [nan, nan], [2.0, 6.0], [5.0, 3.0]])
    history = {"rows": rows, "env_steps": rows[:, None] - resets, "charts/episodic_return": returns}
    mean, episodes = scores.training_returns(history, 5)
    np.testing.assert_allclose(mean, [(4 * 5 + 2 * 2) / 6, (2 * 3 + 6) / 3])
    assert episodes == [6, 3]  # the other seed has no more
    pong = EXPERIMENTS["ppo-pong"]
    assert pong.asked == "mean ≥ -10 in the last 100 episodes of training" and scores.describe(pong)["last_episodes"] == 100


def test_intervals():
    assert scores.bootstrap_interval(np.full(4, 500.0)) == [500.0, 500.0]
    values = np.random.default_rng(1).normal(100, 10, 200)
    low, high = scores.bootstrap_interval(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert abs(low - (values.mean() - half)) < 0.3 and abs(high - (values.mean() + half)) < 0.3


@pytest.mark.slow
def test_an_interrupted_experiment_goes_on_bit_for_bit(tmp_path, monkeypatch):
    settings = {"num_envs": 2, "rollout_length": 8, "num_epochs": 1, "anneal": True}
    experiment = Experiment("tiny", "make_ppo", "CartPole-v1", settings, 160, 2, 1e9, episodes=4)
    out, work = tmp_path / "out", tmp_path / "work"
    true_run = jaxrl.run

    def killed(*args, **settings):
        def kill(chunk):
            if chunk.iteration == 4:
                raise KeyboardInterrupt

        return true_run(*args, **settings, checkpoint_every=1e-6, on_chunk=kill)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(jaxrl, "run", killed)
        scores.run_experiment(experiment, out, work, quiet=True)
    assert not out.exists() and (work / "tiny" / "checkpoints").exists()
    with pytest.raises(FileExistsError, match="eval_every"):
        scores.run_experiment(experiment._replace(total_steps=320), out, work, quiet=True)
    resumed = scores.run_experiment(experiment, out, work, quiet=True)
    whole = scores.run_experiment(experiment, tmp_path / "other", work, quiet=True)
    for name in ("scores", "history", "mean", "interval", "total_steps"):
        assert resumed[name] == whole[name], name
    assert len(whole["scores"]) == 2 and not whole["passed"] and whole["train_seconds"] > 0
    assert np.all(np.diff(whole["history"]["env_steps"], axis=0) > 0)
    assert json.loads((out / "tiny.json").read_text()) == resumed
    pictures.draw([whole], tmp_path / "tiny.png")
    assert (tmp_path / "tiny.png").stat().st_size > 1000
    assert not (work / "tiny").exists()


def test_a_finished_experiment_is_not_run_again(tmp_path, monkeypatch):
    experiment = Experiment("tiny", "make_ppo", "CartPole-v1", {}, 160, 2, 0)
    done = {"experiment": scores.describe(experiment), "mean": 3.0}
    (tmp_path / "tiny.json").write_text(json.dumps(done))
    monkeypatch.setattr(scores, "train_and_evaluate", lambda *_: pytest.fail("trained"))
    assert scores.run_experiment(experiment, tmp_path, tmp_path / "work", quiet=True) == done
    for changed, force in ((experiment._replace(total_steps=320), False), (experiment, True)):
        with pytest.raises(pytest.fail.Exception, match="trained"):
            scores.run_experiment(changed, tmp_path, tmp_path / "work", force=force, quiet=True)

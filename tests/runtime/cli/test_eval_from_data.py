"""``jaxrl eval --data``: estimated values of a run's policies, as a table and as JSON, and options without effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxrl
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.run import run
from tests.helpers.agents import cartpole
from tests.helpers.datasets import random_dataset

SEEDS = [4, 2]  # as in other tests, which share the compiled programs
pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run on CartPole, ``ppo``, and files of data: ``data.npz``, and ``other.npz`` with other spaces."""
    made = tmp_path_factory.mktemp("runs")
    settings = {"eval_every": 1, "eval_episodes": 4, "quiet": True, "tensorboard": False}
    run(cartpole("ppo"), 64, seeds=SEEDS, out=made / "ppo", hyperparams={"gamma": [0.9, 0.8]}, **settings)
    jaxrl.save_dataset(made / "data.npz", random_dataset("CartPole-v1"))
    jaxrl.save_dataset(made / "other.npz", random_dataset("Pendulum-v1"))
    return made


@pytest.mark.slow
def test_values_are_those_of_fitted_q_evaluation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Discounted as in training unless --gamma is given."""
    words = ["eval", str(folder / "ppo"), "--data", str(folder / "data.npz"), "--updates", "2"]
    assert main([*words, "--seed", "2", "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    (one,) = found["runs"]
    gamma = float(np.float32(0.8))
    assert one["seeds"] == [2] and one["algorithm"] == "PPO" and one["gamma_per_seed"] == [gamma]
    data = jaxrl.load_dataset(folder / "data.npz")
    expected = jaxrl.fitted_q_evaluation(jaxrl.load_policy(folder / "ppo", seed=2), data, gamma=gamma, updates=2)
    np.testing.assert_allclose(one["value_per_seed"], [expected.value], rtol=1e-5)
    np.testing.assert_allclose(one["standard_error_per_seed"], [expected.standard_error], rtol=1e-4)
    assert found["settings"]["data"].endswith("data.npz") and "episodes" not in found["settings"]

    assert main([*words, "--gamma", "0.5"]) == 0
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines() if "PPO" in line]
    assert [row[2] for row in rows] == ["4", "2"] and all(row[-1] == "0.5" for row in rows)
    assert "values of 2 policies from 190 rows" in shown.err and "best policies: iteration" in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "data.npz", "--episodes", "3"], "--episodes has no effect with --data: no episode is played"),
        (["--data", "data.npz", "--eval-seed", "3"], "--eval-seed has no effect with --data"),
        (["--data", "data.npz", "--env", "CartPole-v1"], "--env has no effect with --data"),
        (["--gamma", "0.9"], "--gamma has no effect without --data: leave it out"),
        (["--updates", "9"], "--updates has no effect without --data"),
        (["--data", "nowhere.npz"], "nowhere.npz"),
        (["--data", "other.npz"], r"the dataset has observations Box(3) float32 and the policy has Box(4)"),
        (["--data", "data.npz", "--gamma", "1"], "gamma=1 is not allowed"),
    ],
)
def test_what_is_refused(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(["eval", "ppo", *words]) == 2
    assert message.replace(" float32", "") in capsys.readouterr().err.replace(" float32,", "")

"""Scores of single seeds, and their result together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as command_line
from benchmarks import scores, seed_parts, thin
from benchmarks.experiment import Experiment
from benchmarks.experiments import EXPERIMENTS

TINY = Experiment(
    "tiny", "make_ppo", "CartPole-v1", {"num_envs": 2, "rollout_length": 8, "num_epochs": 1}, 1_600, 2, 0, episodes=4
)


def part(seed: int, score: float, steps: list[int], returns: list[float], **others: Any) -> dict[str, Any]:
    """Return the result of one seed of ``TINY``."""
    return {
        "name": "tiny",
        "agent": "PPO",
        "experiment": scores.describe(TINY._replace(num_seeds=1)),
        "mean": score,
        "scores": [score],
        "seeds": [seed],
        "train_seconds": 10.0,
        "command": "python -m benchmarks scores tiny",
        "date": f"2026-01-0{seed + 1}",
        "commit": "abc",
        "hardware": {"cpu": "A, 1", "cores": 1},
        "history": {"env_steps": steps, "charts/episodic_return": [[x] for x in returns]},
    } | others


def test_results_of_seeds_are_joined() -> None:
    parts = [
        part(0, 2.0, [0, 10, 20], [0.0, 1.0, 3.0]),
        part(1, 5.0, [0, 20], [4.0, 8.0], commit="def", hardware={"cpu": "B", "cores": 1}),
    ]
    result = seed_parts.joined(TINY, parts)
    assert (result["mean"], result["scores"], result["interval"], result["seeds"]) == (3.5, [2.0, 5.0], [2.0, 5.0], [0, 1])
    assert (result["experiment"], result["passed"], result["train_seconds"]) == (scores.describe(TINY), True, 20.0)
    assert (result["commit"], result["hardware"]["cpu"], result["date"]) == ("abc; def", "A, 1; B", "2026-01-02")
    assert result["command"] == "python -m benchmarks scores tiny --seed SEED"
    assert result["history"] == {"env_steps": [0, 10, 20], "charts/episodic_return": [[0.0, 4.0], [1.0, 6.0], [3.0, 8.0]]}


def test_a_joined_curve_has_no_return_far_from_the_known_ones() -> None:
    """Of a seed that diverged, or whose episodes are long, and of one that has none."""
    first = {"env_steps": [0, 10, 20, 30], "charts/episodic_return": [[0.0], [1.0], [2.0], [3.0]]}
    diverged = {"env_steps": [1, 11], "charts/episodic_return": [[4.0], [5.0]]}
    long = {"env_steps": [20, 29], "charts/episodic_return": [[6.0], [6.9]]}
    none = {"env_steps": [0, 30], "charts/episodic_return": [[None], [None]]}
    joined = thin.join_histories([first, diverged, long, none])
    assert joined["env_steps"] == [0, 10, 20, 30]
    columns = [[*column] for column in zip(*joined["charts/episodic_return"], strict=True)]
    assert columns == [[0, 1, 2, 3], [4, 4.9, 5, None], [None, 6, 6, 6.9], [None] * 4]


def test_parts_without_a_commit() -> None:
    parts = [part(seed, 2.0, [0, 10], [0.0, 1.0], commit=None) for seed in range(2)]
    assert seed_parts.joined(TINY, parts)["commit"] is None
    assert seed_parts.joined(TINY, [parts[0], part(1, 2.0, [0, 10], [0.0, 1.0])])["commit"] == "abc"


def test_the_last_seed_writes_the_result_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = []

    def train(experiment: Experiment, folder: Path, quiet: bool, *, first_seed: int) -> dict[str, Any]:
        assert experiment == TINY._replace(num_seeds=1) and folder == tmp_path / "work" / f"tiny-{first_seed}"
        trained.append(first_seed)
        return part(first_seed, float(first_seed), [0, 10], [0.0, 1.0])

    monkeypatch.setattr(seed_parts, "train_and_evaluate", train)
    out, work = tmp_path / "out", tmp_path / "work"
    for seed in (1, 1, 0):
        assert not (out / "tiny.json").exists()
        result = seed_parts.run_seed(TINY, seed, out, work)
        assert (result is None) == (seed == 1)
        told = capsys.readouterr().out.splitlines()
        assert told[0] == f"tiny, seed {seed}: {seed}.0; trained in 10 s"
        assert told[1] == ("tiny: 0.5; required: mean ≥ 0, passed" if seed == 0 else "tiny: still to train: --seed 0")
    assert trained == [1, 0] and json.loads((out / "tiny.json").read_text())["scores"] == [0.0, 1.0]
    assert [path.name for path in out.rglob("*.json")] == ["tiny.json"]
    seed_parts.run_seed(TINY, 1, out, work)
    assert trained == [1, 0] and "exists (--force" in capsys.readouterr().out
    seed_parts.run_seed(TINY, 1, out, work, force=True)
    assert trained == [1, 0, 1] and "still to train: --seed 0 --force" in capsys.readouterr().out
    seed_parts.run_seed(TINY, 0, out, work, force=True)
    assert trained == [1, 0, 1, 0] and "tiny: 0.5; required" in capsys.readouterr().out


def test_further_seeds_join_a_result_of_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two = part(0, 3.0, [0, 10], [0.0, 1.0], experiment=scores.describe(TINY), scores=[2.0, 4.0], seeds=[0, 1])
    two["history"]["charts/episodic_return"] = [[0.0, None], [1.0, 2.0]]
    thin.write_thin(tmp_path / "tiny.json", two)
    trained = []

    def train(experiment: Experiment, folder: Path, quiet: bool, *, first_seed: int) -> dict[str, Any]:
        trained.append(first_seed)
        return part(first_seed, float(first_seed), [0, 20], [0.0, 8.0], commit="def", hardware={"cpu": "B", "cores": 1})

    monkeypatch.setattr(seed_parts, "train_and_evaluate", train)
    more = TINY._replace(num_seeds=4)
    assert seed_parts.run_seed(more, 1, tmp_path, tmp_path / "work") is None
    assert "seed 1: 4.0, in the result of 2 seeds\ntiny: still to train: --seed 2, --seed 3\n" in capsys.readouterr().out
    assert seed_parts.run_seed(more, 3, tmp_path, tmp_path / "work") is None
    result = seed_parts.run_seed(more, 2, tmp_path, tmp_path / "work")
    assert trained == [3, 2] and result is not None and result == json.loads((tmp_path / "tiny.json").read_text())
    assert (result["scores"], result["seeds"], result["mean"]) == ([2.0, 4.0, 2.0, 3.0], [0, 1, 2, 3], 2.75)
    assert (result["experiment"], result["train_seconds"], result["commit"]) == (scores.describe(more), 30.0, "abc; def")
    assert result["hardware"]["cpu"] == "A, 1; B"
    assert result["history"]["charts/episodic_return"] == [[0.0, 2.0, 0.0, 0.0], [1.0, 2.0, 4.0, 4.0]]
    assert [path.name for path in tmp_path.rglob("*.json")] == ["tiny.json"]


@pytest.mark.parametrize(("score", "status"), [(-1.0, 1), (1.0, 0)])
def test_the_command_writes_tables_and_fails_if_the_whole_score_does(
    score: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[Path] = []
    monkeypatch.setitem(command_line.EXPERIMENTS, "ppo-cartpole", TINY)
    monkeypatch.setattr(command_line, "write_table", tables.append)
    monkeypatch.setattr(seed_parts, "train_and_evaluate", lambda *_, first_seed: part(first_seed, score, [0, 10], [0.0, 1.0]))
    command = ["scores", "ppo-cartpole", "--out", str(tmp_path), "--work", str(tmp_path / "work"), "--seed"]
    assert command_line.main([*command, "0"]) == 0 and tables == []
    assert command_line.main([*command, "1"]) == status and tables == [tmp_path]


@pytest.mark.parametrize(
    ("name", "seed", "message"),
    [
        ("ppo-cartpole", 16, "ppo-cartpole has the seeds 0 to 15, not 16"),
        ("ppo-cartpole", -1, "has the seeds 0 to 15, not -1"),
        ("ppo-tictactoe", 0, "the seeds of ppo-tictactoe cannot be trained apart, because of its against"),
        ("iql-pendulum-mixed", 0, "cannot be trained apart, because of its data"),
    ],
)
def test_seeds_that_cannot_be_trained_alone(name: str, seed: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in EXPERIMENTS
    assert command_line.main(["scores", name, "--seed", str(seed), "--out", "nowhere"]) == 2
    assert message in capsys.readouterr().err and not Path("nowhere").exists()


@pytest.mark.slow
def test_seeds_alone_have_the_scores_that_they_have_together(tmp_path: Path) -> None:
    together = scores.run_experiment(TINY, tmp_path / "together", tmp_path / "work", quiet=True)
    for seed in (0, 1):
        seed_parts.run_seed(TINY, seed, tmp_path, tmp_path / "work", quiet=True)
    apart = json.loads((tmp_path / "tiny.json").read_text())
    for name in ("experiment", "agent", "scores", "mean", "interval", "passed", "seeds", "total_steps"):
        assert apart[name] == together[name], name
    returns = np.array(apart["history"]["charts/episodic_return"], float)
    assert returns.shape == (len(apart["history"]["env_steps"]), 2) and np.isfinite(returns).all()

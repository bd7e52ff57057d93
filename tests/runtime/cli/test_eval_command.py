"""``jaxrl eval``: it reports the policies' returns, for single and several runs, and names policies that cannot be played."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.runtime.cli.commands.eval import interquartile
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.evaluation import evaluate_runs
from jaxrl.runtime.evaluation.evaluate import evaluate
from jaxrl.runtime.evaluation.evaluate_runs import episode_key
from jaxrl.runtime.run import run
from tests.helpers.agents import cartpole
from tests.helpers.paths import ROOT

SEEDS = [4, 2]  # as in other tests, which share the compiled programs
pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with short runs on CartPole: ``ppo``, and ``deeper/dqn``, which was never evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    settings: dict[str, Any] = {"eval_episodes": 4, "quiet": True, "tensorboard": False}
    run(cartpole("ppo"), 64, seeds=SEEDS, out=folder / "ppo", eval_every=1, **settings)
    run(cartpole("dqn"), 120, seeds=SEEDS, out=folder / "deeper" / "dqn", eval_every=0, **settings)
    return folder


def evaluated(capsys: pytest.CaptureFixture[str], *args: str | Path) -> dict[str, Any]:
    """Run an evaluation and return its JSON."""
    assert main(["eval", *map(str, args), "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


# --------------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.slow
def test_returns_are_those_of_evaluate(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, runs / "ppo", "--episodes", "3", "--eval-seed", "3")
    assert found["settings"] == {
        "episodes": 3,
        "which": "best",
        "seed": [],
        "explore": False,
        "env": None,
        "eval_seed": 3,
        "max_steps": None,
    }
    assert found["versions"]["jaxrl"] == jaxrl.__version__
    (one,) = found["runs"]
    assert one["seeds"] == SEEDS and one["algorithm"] == "PPO" and one["env"] == "gymnax:CartPole-v1"
    agent = cartpole("ppo")
    play = jax.jit(lambda policy, key: evaluate(agent, policy, key, 3))
    for seed, returns, lengths in zip(SEEDS, one["episodic_return"], one["episodic_length"], strict=True):
        loaded = jaxrl.load_policy(runs / "ppo", seed=seed)
        expected = play(loaded.policy, episode_key(seed, 3))
        np.testing.assert_array_equal(returns, expected.episodic_return)
        np.testing.assert_array_equal(lengths, expected.episodic_length)
        assert one["iteration"] == loaded.step
    means = np.mean(one["episodic_return"], axis=1)
    np.testing.assert_allclose(one["return_per_seed"], means)
    np.testing.assert_allclose([one["mean"], one["std"]], [means.mean(), means.std()])
    assert [one["iqm"], *one["iqm_interval"]] == list(interquartile(means))


def test_the_interquartile_mean_is_of_seeds() -> None:
    returns = np.array([500.0, 0, 10, 20, 30, 40, 50, 1000])
    iqm, low, high = interquartile(returns)
    assert iqm == np.mean([20, 30, 40, 50]) and 0 < low < iqm < high < 1000
    assert interquartile(np.array([7.0])) == (7, 7, 7)
    assert np.isnan(interquartile(np.array([np.nan]))).all()


@pytest.mark.slow
def test_episodes_follow_from_the_seeds_alone(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def returns(*args: str) -> Any:
        return evaluated(capsys, runs / "ppo", "--episodes", "3", *args)["runs"][0]["episodic_return"]

    first = returns()
    assert first == returns() != returns("--eval-seed", "1")
    assert returns("--seed", "2") == [first[1]] and returns("--seed", "2", "--seed", "4") == first
    assert returns("--explore") != first


def test_episodes_are_not_those_that_chose_the_policy() -> None:
    keys = [jax.random.key_data(episode_key(4, n)).tolist() for n in range(20)]
    keys += [jax.random.key_data(evaluate_runs.evaluation_key(4, n)).tolist() for n in range(20)]
    assert len({tuple(key) for key in keys}) == 40


@pytest.mark.slow
def test_another_environment(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = evaluated(capsys, runs / "ppo", "--episodes", "3", "--env", "CartPole-v1?max_steps_in_episode=3")["runs"][0]
    assert short["env"] == "gymnax:CartPole-v1?max_steps_in_episode=3" and short["episodic_length"] == [[3, 3, 3]] * 2
    host = evaluated(capsys, runs / "ppo", "--episodes", "3", "--env", "envpool:CartPole-v1", "--seed", "2")["runs"][0]
    assert host["episodic_length"] == host["episodic_return"] and min(host["episodic_length"][0]) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("explore", [False, True])
def test_greedy_play_of_a_run_that_explored_is_told(
    explore: bool, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "ppo", tmp_path / "ppo")
    config = json.loads((tmp_path / "ppo" / "config.json").read_text())
    config["run"]["eval_explore"] = True
    (tmp_path / "ppo" / "config.json").write_text(json.dumps(config))
    args = [str(tmp_path / "ppo"), "--episodes", "1", "--env", "envpool:CartPole-v1", "--seed", "2"]
    assert main(["eval", *args, *["--explore"] * explore]) == 0
    told = "its evaluations explored, and its best policies were chosen that way; use --explore for the same"
    assert (told in capsys.readouterr().out) == (not explore)


# ------------------------------------------------------------------------------------------------------------------ many runs


def test_a_folder_of_runs_is_one_table(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    file = tmp_path / "scores.json"
    assert main(["eval", ".", "--which", "last", "--episodes", "3", "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("3 greedy episodes per seed, last policies\n") and out.endswith(f"written to {file}\n")
    assert re.search(
        r"\nppo: last policies: iteration \d+, evaluation return \S+(; the best: iteration \d+, |, which is also the best)", out
    )
    assert err.splitlines() == ["deeper/dqn: 2 seeds × 3 episodes", "ppo: 2 seeds × 3 episodes"]
    found = json.loads(file.read_text())["runs"]
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(("ppo", "deeper"))}
    for each in found:
        row = rows[each["run"]]
        assert row[1:4] == [each["algorithm"], each["env"], str(len(each["seeds"]))]
        assert float(row[4]) == pytest.approx(each["mean"], rel=0.01)
        assert float(row[-3]) == pytest.approx(min(each["return_per_seed"]), rel=0.01)
        assert float(row[-2]) == pytest.approx(max(each["return_per_seed"]), rel=0.01)
        assert float(row[-1]) == pytest.approx(np.mean(each["episodic_length"]), rel=0.01)


def test_a_run_below_a_folder_that_cannot_be_played_is_skipped(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(runs), "--episodes", "3"]) == 1
    out, err = capsys.readouterr()
    assert f"{runs}/ppo" in out and f"{runs}/deeper/dqn" not in out
    assert f"skipped {runs}/deeper/dqn: " in err and "has no best/ yet" in err and "which='last'" in err


def test_a_run_whose_environment_fails_is_skipped(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = evaluate_runs.evaluate_run

    def failing(run: str, *arguments: Any, **keywords: Any) -> Any:
        if run.endswith("ppo"):
            raise EnvironmentFailed("environment 0 raised ZeroDivisionError")
        return evaluate(run, *arguments, **keywords)

    monkeypatch.setattr(evaluate_runs, "evaluate_run", failing)
    assert main(["eval", str(runs), "--episodes", "3", "--which", "last"]) == 1
    out, err = capsys.readouterr()
    assert f"{runs}/deeper/dqn" in out and f"skipped {runs}/ppo: environment 0 raised ZeroDivisionError" in err


def test_a_run_that_is_named_must_be_playable(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results of policies played before it are not lost."""
    assert main(["eval", str(runs / "ppo"), str(runs / "deeper" / "dqn"), "--episodes", "3"]) == 2
    out, err = capsys.readouterr()
    assert f"{runs}/ppo" in out and err.splitlines()[-1].startswith("jaxrl: ") and "has no best/ yet" in err


def test_ctrl_c_keeps_what_is_done(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true, calls = evaluate_runs.evaluate_run, []

    def interrupted(run: Any, *args: Any, **settings: Any) -> Any:
        calls.append(run)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return true(run, *args, **settings)

    monkeypatch.setattr(evaluate_runs, "evaluate_run", interrupted)
    file = tmp_path / "scores.json"
    assert main(["eval", str(runs), "--which", "last", "--episodes", "3", "--json", str(file)]) == 130
    out, err = capsys.readouterr()
    assert "deeper/dqn" in out and "ppo" not in out and err.splitlines()[-1] == "jaxrl: interrupted"
    assert len(json.loads(file.read_text())["runs"]) == 1


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_program_that_plays(runs: Path) -> None:
    """Otherwise it would take hours, since these episodes do not end."""
    env = "CartPole-v1?max_steps_in_episode=1000000000&theta_threshold_radians=1e30&x_threshold=1e30"
    args = ["eval", str(runs / "ppo"), "--env", env, "--max-steps", "1000000000", "--episodes", "3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        [sys.executable, "-m", "jaxrl", *args], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr and process.stderr.readline() == f"{runs}/ppo: 2 seeds × 3 episodes\n"
            time.sleep(2)  # it is compiling or playing
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "jaxrl: interrupted\n")


# ----------------------------------------------------------------------------------------------------------- incomplete results


def test_episodes_that_were_cut_are_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(runs / "ppo"), "--episodes", "3", "--max-steps", "4"]) == 0
    assert "6 of 6 episodes were cut at the step limit" in capsys.readouterr().out


def test_seeds_with_different_hyperparameters_are_told_apart(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ppo"
    shutil.copytree(runs / "ppo", folder)
    config = json.loads((folder / "config.json").read_text())
    config["run"]["hyperparams"] = {"learning_rate": [0.5, 0.25], "gamma": 0.75}
    (folder / "config.json").write_text(json.dumps(config))
    file = tmp_path / "scores.json"
    assert main(["eval", str(folder), "--episodes", "3", "--json", str(file)]) == 0
    assert "its seeds differ in learning_rate, and the table pools them" in capsys.readouterr().out
    (found,) = json.loads(file.read_text())["runs"]
    assert found["hyperparams"] == {"learning_rate": [0.5, 0.25], "gamma": [0.75, 0.75]}
    assert main(["eval", str(folder), "--episodes", "3", "--seed", "2"]) == 0
    assert "its seeds differ" not in capsys.readouterr().out


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("broken", [[0], [0, 1]])
def test_seeds_whose_return_is_no_finite_number_are_left_out(
    broken: list[int],
    value: float,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    true = evaluate_runs._play_fused

    def play(*args: Any) -> Any:
        played = jax.tree.map(np.array, true(*args))
        played.episodic_return[broken, :2] = value, -value
        return played

    monkeypatch.setattr(evaluate_runs, "_play_fused", play)
    file = tmp_path / "scores.json"
    assert main(["eval", str(runs / "ppo"), "--episodes", "3", "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert f"without the seeds {', '.join(str((4, 2)[i]) for i in broken)}, which have returns that are not finite" in out
    assert "nan" not in out and "inf" not in out.replace("finite", "") and "invalid" not in err
    (run,) = json.loads(file.read_text())["runs"]
    assert (run["mean"] is None) == (len(broken) == 2) and run["return_per_seed"][0] is None


def test_results_go_into_a_pipe_as_they_do_into_a_file(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json >(jq …)``, or /dev/null, which must not be replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    try:
        assert main(["eval", str(runs / "ppo"), "--episodes", "3", "--json", str(tmp_path / "pipe")]) == 0
        assert json.loads(reader.communicate(timeout=60)[0])["runs"] and os.listdir(tmp_path) == ["pipe"]
    finally:
        reader.kill()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("broken", [[0], [0, 1]])
def test_seeds_that_diverged_are_left_out(
    broken: list[int], frozen: bool, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = evaluate_runs.load_policies

    def with_nan(*args: Any, **settings: Any) -> Any:
        saved = true(*args, **settings)
        assert not saved.diverged.any()
        if frozen:  # a diverged seed keeps finite parameters, and the log records it
            return saved._replace(diverged=np.isin(np.arange(2), broken))

        def spoil(x: np.ndarray) -> np.ndarray:
            x = x.copy()
            x[broken] = np.nan
            return x

        return saved._replace(policies=saved.policies._replace(params=jax.tree.map(spoil, saved.policies.params)))

    monkeypatch.setattr(evaluate_runs, "load_policies", with_nan)
    code = main(["eval", str(runs / "ppo"), "--episodes", "3"])
    out, err = capsys.readouterr()
    if len(broken) == 1:
        assert code == 0 and "without the seeds 4, which diverged\n" in out
        assert "nan" not in out.replace("since", "")
    else:
        assert code == 2 and "has no policy to play" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["{runs}/nothing"], "there is no such folder"),
        (["{empty}"], "holds no run"),
        ([], "name at least one folder of a run"),
        (["{runs}/ppo", "--seed", "3"], "seed=3 was not trained in"),
        (["{runs}/ppo", "--episodes", "0"], "episodes=0"),
        (["{runs}/ppo", "--max-steps", "0"], "max_steps=0"),
        (["{runs}/ppo", "--eval-seed", "-1"], "eval_seed=-1"),
        (["{runs}/ppo", "--eval-seed", "4294967296"], "eval_seed=4294967296"),
        (["{runs}/ppo", "--json", "{empty}"], "cannot be written to: it is a folder"),
        (["{runs}/ppo", "--json", "{empty}/no/x.json"], "cannot be written to"),
        (["{runs}/ppo", "--env", "Acrobot-v1"], "its observations are Box(6) float32, but they were trained on"),
        (["{runs}/ppo", "--env", "CartPol-v1"], "Did you mean 'CartPole-v1'"),
        (["{runs}/ppo", "--env", "envpool:MountainCar-v0"], "does not fit these policies"),
        (["{runs}", "--seed", "3"], "none of the 2 runs that were found can be evaluated"),
    ],
)
def test_wrong_requests(args: list[str], words: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [arg.format(runs=runs, empty=tmp_path) for arg in args]
    assert main(["eval", *given, *([] if given else ["--episodes", "3"])]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1].startswith("jaxrl: ") and words in err.splitlines()[-1]


def test_a_damaged_checkpoint_is_named(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "ppo"
    shutil.copytree(runs / "ppo", copy)
    for file in (copy / "best").rglob("*"):
        if file.is_file() and file.name != "manifest.json" and file.stat().st_size:
            file.write_bytes(b"\xff" * file.stat().st_size)
    assert main(["eval", str(copy), "--episodes", "3"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"{copy}/best" in err and "was altered" in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["eval", "--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    flags = ("--episodes", "--which", "--seed", "--explore", "--env", "--eval-seed", "--max-steps", "--json")
    assert all(flag in out for flag in flags) and "jaxrl eval runs --json scores.json" in out

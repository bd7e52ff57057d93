"""The command line: flags from the builders' settings, help, one-line errors."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import jaxrl
from jaxrl.runtime import run as run_module
from jaxrl.runtime.cli.commands.train import ALGORITHMS, free_folder, parse, parse_seeds
from jaxrl.runtime.cli.flags import field_docs
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.cli.run_flags import run_flags
from jaxrl.settings.options import dotted_names, option_fields
from tests.helpers.agents import gymnax_id, required
from tests.helpers.command_line import ENV, SMALL, start
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(55)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command line appends the current folder


# ------------------------------------------------------------------------------------------------------------------------- help


def test_help_and_version_import_no_jax() -> None:
    for args in (["--help"], ["--version"], ["train", "--help"]):
        code = f"import sys; from jaxrl.runtime.cli.main import main; code = main({args}); sys.exit(code or 'jax' in sys.modules)"
        process = start("-c", code)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, ""), args
        assert "jaxrl" in out


@pytest.mark.slow
def test_a_terminal_without_utf_8_shows_what_it_can() -> None:
    for args in (["--help"], ["presets"]):
        process = start("-m", "jaxrl", *args, env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"})
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "") and "?" in out, args


def test_help_names_commands_algorithms_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0 and "train" in capsys.readouterr().out
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in ALGORITHMS)
    assert main([]) == 2 and main(["train"]) == 2
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"jaxrl {jaxrl.__version__}\n")


def test_the_options_of_resuming_are_shown_without_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", "--help"])
    assert ended.value.code == 0
    assert "--devices-per-seed" in (shown := capsys.readouterr().out) and "--total-steps" in shown


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_setting_is_a_flag(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(algorithm, ["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    _, settings = parse(algorithm, ["--env", "x"])
    names = {field.name for field in dataclasses.fields(run_flags())} | set(settings)
    missing = {name for name in names if f"--{name.replace('_', '-')}" not in text}
    assert not missing
    config: Any = ALGORITHMS[algorithm].load().config
    assert all(f"--{name.replace('_', '-')}" in text for name in dotted_names(config))
    env = gymnax_id(algorithm)
    agent = getattr(jaxrl, f"make_{algorithm}")(env, **required(algorithm, env))
    added = {field.name: field.default for field in dataclasses.fields(config) if "added" in field.metadata}
    # total_steps is of a run, and horizon is the environment's limit; flags of options are absent unless they are given.
    apart = {"total_steps", "horizon", *option_fields(config)}
    expected = {name: value for name, value in (added | agent.spec["settings"]).items() if name not in apart}
    assert {name: value for name, value in settings.items() if name != "horizon"} == expected


def test_flags_reach_run_and_builder() -> None:
    args = "--env a --seeds 3,5 --total-steps 64 --out o --eval-every 7 --exact-steps --quiet --num_envs 3 --anneal --gamma 0.5"
    options, settings = parse("dqn", args.split())
    expected: dict[str, Any] = {"seeds": "3,5", "total_steps": 64, "out": "o", "eval_every": 7}
    assert options == run_flags()("a", **expected, exact_steps=True, quiet=True)
    chosen = {"num_envs": 3, "anneal": True, "gamma": 0.5}
    assert {name: settings[name] for name in chosen} == chosen
    assert "total_steps" not in settings  # a run sets it
    assert isinstance(settings["num_envs"], int) and isinstance(settings["replay_ratio"], float)


def test_counts_may_be_written_as_people_do() -> None:
    args = "--env a --total-steps 1e5 --eval-every 1e1 --num-envs 8.0 --num-epochs 1_0"
    options, settings = parse("ppo", args.split())
    assert (options.total_steps, options.eval_every, settings["num_envs"], settings["num_epochs"]) == (100_000, 10, 8, 10)
    assert all(type(x) is int for x in (options.total_steps, options.eval_every, settings["num_envs"]))


@pytest.mark.slow
def test_a_run_begins_with_the_parameters_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", "ppo", "--env", ENV, *SMALL, "--eval-every", "0"]
    assert main([*train, "--total-steps", "16", "--out", str(tmp_path / "first")]) == 0
    capsys.readouterr()
    begin = [*train, "--total-steps", "8", "--out", str(tmp_path / "second"), "--init-from", str(tmp_path / "first")]
    assert main([*begin, "--init-which", "last"]) == 0
    assert re.search(r"init_from='.*first' \(last checkpoint, iteration \d+\): took (\d+) of \1 arrays", capsys.readouterr().out)
    assert main([*train, "--out", str(tmp_path / "third"), "--init-from", str(tmp_path / "none")]) == 2
    assert "no checkpoint to restore" in capsys.readouterr().err


def test_help_texts_come_from_the_fields() -> None:
    class Settings:
        """Some."""

        first: int = 1
        second: float = 2.0
        """What ``second``
        does."""
        third: Annotated[float, "What ``third`` does."] = 3.0

    assert field_docs(Settings) == {"second": "What second does.", "third": "What third does."}


# ---------------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["trian"], "unknown command 'trian'. Did you mean 'train'?"),
        (["train", "--env", "x"], "name the algorithm first: jaxrl train ppo --env x. Choose one of ppo, a2c,"),
        (["train", "--env", "x", "dqn"], "name the algorithm first: jaxrl train dqn --env x. Choose one of"),
        (["train", "--env", "dqn"], "name the algorithm first: jaxrl train ppo --env dqn. Choose one of"),
        (
            ["train", "ppo", "--env", "x", "--anneal", "false"],
            "--anneal is a switch and takes no value, but got 'false': write --anneal or --no-",
        ),
        (["train", "ppo", "--env", "x", "--normalize_rewards=True"], "write --normalize-rewards or --no-normalize-rewards"),
        (["train", "ppoo"], "unknown algorithm 'ppoo'. Did you mean 'ppo'?"),
        (["train", "ppo", "--env", "CartPol-v1"], "Did you mean 'CartPole-v1'"),
        (["train", "ppo", "--env", "nowhere:CartPole"], "unknown backend 'nowhere'"),
        (["train", "ppo", "--env", "nowhere:make"], f"no module 'nowhere' was found in {os.getcwd()!r}"),
        (["train", "ppo", "--env", "./nowhere.py:make"], "without a folder and without .py: 'nowhere:make'"),
        (["train", "ppo", "--env", ENV, "--seeds", "many"], "--seeds 'many' must be a number of seeds"),
        (["train", "ppo", "--env", ENV, "--num-minibatches", "3"], "num_minibatches=3 must divide"),
        (["train", "ppo", "--env", ENV, "--learning-rate", "nan"], "learning_rate=nan is not allowed"),
        (["train", "ppo", "--env", ENV, "--init-which", "last"], "init_which='last' has no effect without init_from"),
        (["train", "ppo", "--env", ENV, "--num-workers", "2"], "num_workers=… is for environments on the host"),
        (["train", "ppo", "--env", ENV, "--out", __file__], "cannot be written to"),
        (["train", "ppo", "--env", ENV, "--out", str(ROOT)], "is not empty"),
        (["train", "ppo", "--env", ENV, "--out", ""], "'' is not a path of a folder or file"),
        (["train", "dqn", "--env", "Pendulum-v1", "--out", "x"], "DQN needs a Discrete action space"),
    ],
)
def test_errors_are_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("jaxrl: ") and words in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--env", "x", "--lerning-rate", "1"], "--learning-rate"),
        (["--env", "x", "--num-env", "1"], "--num-envs"),
        (["--env", "x", "--num-envs", "2.5"], "'2.5' is not an integer"),
        (["--env", "x", "--total-steps", "inf"], "'inf' is not an integer"),
        (["--env", "x", "--eval-every", "many"], "'many' is not an integer"),
        (["--seeds", "2"], "--env"),
    ],
)
def test_wrong_flags_name_the_right_ones(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *args]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_DEBUG", "1")
    with pytest.raises(ValueError, match="CartPole-v1"):
        main(["train", "ppo", "--env", "CartPol-v1"])


def test_seeds_as_text() -> None:
    assert [parse_seeds(text) for text in ("8", "3,5,7", "3,", " 4 ", "1e1")] == [8, [3, 5, 7], [3], 4, 10]


def test_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_folder("ppo-a:b?c=1") == Path("runs/ppo-a-b-c-1")
    for name in ("runs/ppo", "runs/ppo-2"):
        Path(name).mkdir(parents=True)
    assert free_folder("ppo") == Path("runs/ppo-3")


# --------------------------------------------------------------------------------------------------------------------- training


def test_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text(
        f"import sys; sys.path.append({str(ROOT)!r})\nfrom tests.helpers.probes import action_choice\n"
    )
    args = ["--env", "my_env:action_choice", "--seeds", "1,2", "--total-steps", "60", "--eval-episodes", "2"]
    assert main(["train", "ppo", "--anneal", *args, *SMALL]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "total_steps=60 rounded up to 64" in out and "results in runs/ppo-my_env-action_choice" in out
    folder = tmp_path / "runs" / "ppo-my_env-action_choice"
    config = json.loads((folder / "config.json").read_text())
    assert config["run"]["seeds"] == [1, 2] and config["agent"]["settings"]["anneal"] is True
    rows = list(csv.DictReader((folder / "progress.csv").read_text().splitlines()))
    assert [row["iteration"] for row in rows[:4]] == ["0", "0", "1", "1"] and rows[0]["charts/learning_rate"] == ""
    assert float(rows[-1]["charts/learning_rate"]) < float(rows[2]["charts/learning_rate"])
    assert jaxrl.build(config["agent"]).num_envs == 2


@pytest.mark.slow
def test_a_run_is_made_longer_and_nothing_else_of_it_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "ppo", "--anneal", "--env", ENV, "--eval-every", "0", *SMALL]
    folder = str(tmp_path / "run")
    assert main([*words, "--out", folder, "--total-steps", "16"]) == 0
    assert main([*words, "--out", folder, "--total-steps", "24"]) == 0
    assert main(["train", "--resume", folder, "--total-steps", "32", "--trust", "tests"]) == 0
    assert "resumed at step 24" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "run" / "progress.csv").read_text().splitlines()))
    rates = [float(row["charts/learning_rate"]) for row in rows]
    np.testing.assert_allclose(rates, 1e-3 * np.array([1, 1 / 2, 1 / 3, 1 / 4]), rtol=1e-5)
    for flags in (["--learning-rate", "0.1"], ["--seeds=3"], ["--no-anneal"]):
        assert main(["train", "--resume", folder, *flags]) == 2
        message = capsys.readouterr().err
        assert f"{flags[0].partition('=')[0]} cannot be combined with --resume" in message and message.count("\n") == 1
        goes_with = "Allowed are --total-steps, --trust, --devices-per-seed, --quiet, --distributed."
        assert goes_with in message and "--init-from FOLDER" in message
    assert main(["train", "ppo", "--resume", folder]) == 2
    assert "ppo cannot be combined with --resume" in capsys.readouterr().err
    assert main(["train", "--resume", folder, "--total-steps", "8", "--trust", "tests"]) == 2
    assert "run.total_steps is 32 there and 8 here" in capsys.readouterr().err


def test_interrupted_training_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run", interrupt)
    assert main(["train", "ppo", "--env", ENV, "--out", "x"]) == 130
    assert capsys.readouterr().err == "jaxrl: interrupted\n"

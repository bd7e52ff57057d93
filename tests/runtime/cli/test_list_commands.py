"""``jaxrl envs``, ``algos`` and ``presets``: they list what the library has, and presets are what was measured."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxrl
from benchmarks.experiments import EXPERIMENTS
from jaxrl.algorithms.presets import PRESETS, Score, interval_text
from jaxrl.builder.networks import own_network
from jaxrl.builder.old_specs import converted
from jaxrl.envs.wrappers import WRAPPERS, usage
from jaxrl.rollout.collect import example_rollout
from jaxrl.runtime.cli.commands import envs as envs_command
from jaxrl.runtime.cli.commands.train import ALGORITHMS, parse, train
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.cli.run_flags import run_flags
from jaxrl.runtime.console import tables
from jaxrl.runtime.console.progress import short
from jaxrl.settings.options import dotted_names, option_fields
from tests.helpers.agents import gymnax_id, required, slow_unless
from tests.helpers.datasets import random_dataset
from tests.helpers.paths import ROOT


def output(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# -------------------------------------------------------------------------------------------------------------------------- envs


def test_envs_of_few_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    heading, *rows, empty, total = output(capsys, "envs", "CARTPOLE-v", "--backend", "gymnax").splitlines()
    assert heading.split("  ")[0] == "id" and empty == "" and total == "1 environment: 1 of gymnax"
    assert [part.strip() for part in rows[0].split("  ") if part] == ["CartPole-v1", "Box(4) float32", "Discrete(2)", "500"]


def test_envs_of_several_backends(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "envs", "pendulum-v1")
    assert "Pendulum-v1 " in out and "envpool:Pendulum-v1" in out and "Box(1) float32 [-2, 2]" in out
    assert out.splitlines()[-1] == "3 environments: 1 of gymnax, 1 of envpool, 1 of gymnasium"
    assert "4 environments: 1 of gymnax, 2 of envpool, 1 of gymnasium" in output(capsys, "envs", "PENDULUM-v*")
    assert "envpool:Pendulum-v1" in output(capsys, "envs", "*endulum-v1", "--backend", "envpool")


def test_all_envs_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs_command, "describe", lambda env_id: (env_id, "", "", ""))
    lines = output(capsys, "envs", "--all").splitlines()
    names = {line.strip() for line in lines}
    every = {env_id.removeprefix("gymnax:") for env_id in jaxrl.list_envs()}
    assert every <= names and f"{len(every):,} environments: " in lines[-1] and "jaxrl envs CartPole" in lines[-1]


def test_without_a_filter_families_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    families, total, _ = output(capsys, "envs").split("\n\n", 2)
    heading, *rows = families.splitlines()
    assert heading.split("  ")[0] == "backend" and len(rows) < 50
    cells = [[part for part in row.split("  ") if part] for row in rows]
    every = [env_id.removeprefix("gymnax:") for env_id in jaxrl.list_envs()]
    assert sum(int(number.replace(",", "")) for _, _, number, _ in cells) == len(every)
    assert f"{len(every):,} environments: " in total and "--all" in total
    assert all(set(such.strip().split(", ")) <= set(every) for *_, such in cells)
    for backend, family, number, such in cells[:2] + [row for row in cells if row[1].strip() == "atari"]:
        lines = output(capsys, "envs", family.strip().upper()).splitlines()
        assert lines[-1].startswith(f"{number.strip()} environment") and f"of {backend.strip()}" in lines[-1]
        assert any(line.startswith(such.split(",")[0].strip()) for line in lines)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "envpool:Pong-v5"])
def test_envs_are_described_as_they_are_built(env_id: str) -> None:
    env = jaxrl.make_env(env_id)
    named, observation, action, limit = envs_command.describe(env_id)
    assert named == env_id
    shape = ", ".join(map(str, env.observation_space.shape or ()))
    assert observation.startswith(f"Box({shape}) {env.observation_space.dtype}")
    assert limit == {"Pendulum-v1": "200", "envpool:Pong-v5": "27,000"}[env_id]
    assert action == {"Pendulum-v1": "Box(1) float32 [-2, 2]", "envpool:Pong-v5": "Discrete(6)"}[env_id]
    assert observation.endswith({"Pendulum-v1": " float32", "envpool:Pong-v5": " uint8 [0, 255]"}[env_id])


def test_wrappers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    *_, table, how = output(capsys, "envs").split("\n\n")
    rows = dict(re.split("  +", row, maxsplit=1) for row in table.splitlines()[1:])
    assert set(rows) == {usage(name) for name in WRAPPERS} and all(text.endswith(".") for text in rows.values())
    assert rows["time_limit(max_steps)"].startswith("Truncate episodes after max_steps steps") and "|frame_stack(4)" in how


def test_one_environment_is_shown_by_its_whole_id(capsys: pytest.CaptureFixture[str]) -> None:
    heading, row = output(capsys, "envs", "CartPole-v1|select_observation(0,2)|action_repeat(2)").splitlines()
    assert re.split("  +", row) == [
        "CartPole-v1|select_observation(0,2)|action_repeat(2)",
        "Box(2) float32",
        "Discrete(2)",
        "500 inside",
    ]
    assert heading.split()[0] == "id"
    assert envs_command.describe("CartPole-v1|sticky_actions|time_limit(9)")[3] == "9"
    assert envs_command.describe("CartPole-v1?max_steps_in_episode=70|sticky_actions")[3] == "70"


def test_an_environment_of_the_users_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "my_clocks.py").write_text("from tests.helpers.clocks import clock\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    _, row = output(capsys, "envs", "my_clocks:clock|time_limit(9)").splitlines()
    assert row.startswith("my_clocks:clock|time_limit(9)  ") and row.endswith("  9")


def test_limits_that_terminate_are_said() -> None:
    assert envs_command.describe("DiscountingChain-bsuite")[3] == "100, then terminates"
    assert envs_command.describe("MountainCar-v0")[3] == "200"


def test_envs_that_cannot_be_built_say_why() -> None:
    named, why, *_ = envs_command.describe("tests.helpers.probes:no_such_probe")
    assert named == "tests.helpers.probes:no_such_probe" and why.startswith(
        "cannot be built: module tests.helpers.probes has no function"
    )


def test_an_extra_that_is_not_installed_is_no_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "brax", None)
    assert re.search(r'For more environments: pip install "jaxrl\[brax\]"', output(capsys, "envs"))
    assert main(["envs", "--backend", "brax"]) == 2


@pytest.mark.slow
def test_a_broken_backend_does_not_hide_the_other(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert main(["envs", "CartPole"]) == 0
    out, err = capsys.readouterr()
    assert "1 of gymnax" in out and err.count("\n") == 1 and "envpool" in err and "jaxrl doctor" in err
    assert main(["envs", "--backend", "envpool"]) == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["envs", "--backend", "envpol"], "unknown backend 'envpol'. Did you mean 'envpool'?"),
        (["envs", "CartPool-v1"], "no environment matches 'CartPool-v1'. Did you mean 'CartPole-v1'?"),
        (["envs", "CartPole-v1|time_limt(9)"], "unknown wrapper 'time_limt'. Did you mean 'time_limit'?"),
        (["algos", "pppo"], "unknown algorithm 'pppo'. Did you mean 'ppo'?"),
        (["presets", "ppo-cartpol"], "unknown preset 'ppo-cartpol'. Did you mean 'ppo-cartpole'?"),
        (["train", "ppo", "--preset", "ppo-cartpol"], "Did you mean 'ppo-cartpole'?"),
        (["train", "dqn", "--preset", "ppo-cartpole"], "is for ppo: use jaxrl train ppo --preset ppo-cartpole"),
    ],
)
def test_errors_are_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err


# ------------------------------------------------------------------------------------------------------------------------- algos


def test_algos_are_those_that_train(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "algos")
    for name, entry in ALGORITHMS.items():
        row = next(line for line in out.splitlines() if line.startswith(f"{name} "))
        assert all(part in row for part in (entry.line, entry.takes, entry.family, str(entry.paper), entry.builder))
        assert (ROOT / row.split()[-1]).is_file()
    assert "Schulman et al. 2017" in out and "Mnih et al. 2015" in out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_settings_of_an_algorithm_are_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "algos", name)
    shown = {line.split()[0]: line for line in out.splitlines() if line}
    config: Any = ALGORITHMS[name].load().config
    own = getattr(jaxrl, f"make_{name}")(gymnax_id(name), **required(name, gymnax_id(name))).spec["settings"]
    options = {setting: getattr(config(), setting) for setting in option_fields(config)}
    chosen = {setting: value.name if value else "none" for setting, value in options.items()}
    fields = {f"{setting}.{field}": x for setting, value in options.items() if value for field, x in vars(value).items()}
    # The default is shown, which may stand for the environment's limit.
    own |= {"horizon": config().horizon} if "horizon" in own else {}
    for setting, default in (own | chosen | fields).items():  # own has some options as mappings; chosen replaces them
        assert shown[setting].split()[1] == str(default), setting
    for dotted, kinds in dotted_names(config).items():
        assert f"{', '.join(kind.__name__ for kind in kinds)}:" in shown[dotted], dotted
    assert "a finite number >= 0" in shown["learning_rate"] and "0 disables learning" in shown["learning_rate"]
    network = own_network(ALGORITHMS[name])
    assert all(len(shown[argument].split()) > 3 for argument in list(inspect.signature(network).parameters)[2:])
    assert f"jaxrl train {name} --env ENV" in out and re.search(
        rf"jaxrl\.make_{name}\(env, \*, (data=None, )?(teacher=None, teacher_obs=None, )?model=None", out
    )


# ----------------------------------------------------------------------------------------------------------------------- presets


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ((498.44, 495.06, 500.0), "498.4 [495.1, 500.0]"),
        ((-164.57, -174.2, -9.0), "-164.6 [-174.2, -9.0]"),
        ((0.968, 0.951, 1.0), "0.97 [0.95, 1.00]"),
        ((9.874, 9.5, 10.25), "9.87 [9.50, 10.25]"),
    ],
)
def test_small_returns_have_two_decimals(score: tuple[float, float, float], expected: str) -> None:
    assert interval_text(*score) == str(Score(*score, 1, "")) == expected


MEASURED = [name for name, preset in PRESETS.items() if preset.score]
FIRST = {PRESETS[name].algorithm: name for name in reversed(MEASURED)}.values()
"""A preset of each algorithm."""
PUBLISHED = [name for name in PRESETS if name not in MEASURED]


@pytest.mark.parametrize("name", MEASURED)
def test_presets_are_what_was_measured(name: str) -> None:
    preset = PRESETS[name]
    assert preset.score and preset.threshold is not None
    measured = json.loads((ROOT / preset.source).read_text())
    expected = interval_text(measured["mean"], *measured["interval"])
    assert (str(preset.score), preset.score.train_seconds) == (expected, round(measured["train_seconds"])), (
        f"{preset.source} holds another measurement: copy it to jaxrl/algorithms/presets/measured.py"
    )
    assert measured["experiment"]["episodes"] == EXPERIMENTS[name].episodes and len(measured["scores"]) == preset.num_seeds
    assert measured["hardware"]["cpu"] in preset.score.hardware and str(measured["hardware"]["cores"]) in preset.score.hardware
    assert EXPERIMENTS[name].settings is preset.settings and EXPERIMENTS[name].total_steps == preset.total_steps
    assert measured["spec"]["env"] == preset.env == EXPERIMENTS[name].env


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_that_nobody_measured_say_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Their command is complete, and builds an agent that can train (checked on shapes only)."""
    preset = PRESETS[name]
    first, said, command = output(capsys, "presets", name).splitlines()
    assert said == f"# not measured; settings from {preset.published}" and preset.published and "1 seed of" in first
    assert f"{name} (not measured)" in " ".join(output(capsys, "algos", preset.algorithm).split())
    assert name not in EXPERIMENTS and not (ROOT / preset.source).exists()
    options, settings = parse(preset.algorithm, shlex.split(command)[3:])
    assert parse(preset.algorithm, ["--preset", name]) == (dataclasses.replace(options, preset=name), settings)
    make = ALGORITHMS[preset.algorithm].load().make
    agent = make(preset.env, **settings)
    assert agent.spec == make(preset.env, **preset.settings).spec
    if agent.algorithm.members is not None:  # it has no update from rollouts
        assert jax.eval_shape(agent.algorithm.init, jax.random.key(0), agent.hyperparams).version.shape == ()
        return

    def once(key: Any) -> Any:
        learner, algorithm = agent.init(key).learner, agent.algorithm
        rollout = example_rollout(algorithm, agent.env, algorithm.policy(learner), agent.num_envs, agent.rollout_length)
        return algorithm.update(learner, rollout)[0].version

    assert jax.eval_shape(once, jax.eval_shape(lambda: jax.random.key(0))).shape == ()


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow_unless(name in FIRST)) for name in MEASURED])
def test_commands_of_presets_ask_for_all_that_was_measured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With single flags and with --preset: the same, with every setting of the measurement, so that defaults have not changed
    since."""
    preset = PRESETS[name]
    *comments, command = output(capsys, "presets", name).splitlines()
    assert len(comments) == 3 + bool(preset.dataset) and all(line.startswith("# ") for line in comments)
    assert preset.result in comments[-2] and preset.dataset in comments[1]
    jaxrl_, train, algorithm, *flags = shlex.split(command)
    assert (jaxrl_, train, algorithm) == ("jaxrl", "train", preset.algorithm)
    options, settings = parse(algorithm, flags)
    data = {"data": random_dataset(preset.env)} if preset.dataset else {}
    assert settings.pop("data", None) == preset.data
    measured = converted(json.loads((ROOT / preset.source).read_text())["spec"])
    spec = getattr(jaxrl, f"make_{algorithm}")(preset.env, **settings, **data).spec
    found = {name: measured["settings"][name] if x is None else x for name, x in spec["settings"].items()}  # None: left open
    length = {"total_steps": measured["settings"]["total_steps"]}  # of the measured run, in older files
    assert found | length == measured["settings"] and spec["parts"]["model"] == measured["parts"]["model"]
    expected = run_flags()(preset.env, str(preset.num_seeds), preset.total_steps, **preset.run)
    assert options == expected
    options, settings = parse(algorithm, ["--preset", name])
    assert options == dataclasses.replace(expected, preset=name) and settings.pop("data", None) == preset.data
    assert getattr(jaxrl, f"make_{algorithm}")(preset.env, **settings, **data).spec == spec


def test_a_preset_names_the_dataset_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = (
        "preset iql-pendulum-mixed learns from datasets/pendulum-mixed.npz, which does not exist: make it with 'python -m "
        "benchmarks datasets pendulum-mixed' in jaxrl's repository, or choose another with --data FILE"
    )
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(said)}$"):
        train("iql", ["--preset", "iql-pendulum-mixed", "--quiet"])
    jaxrl.save_dataset("mine.npz", random_dataset("Pendulum-v1"))
    flags = "--data mine.npz --total-steps 2 --updates 1 --batch-size 4 --seeds 1 --eval-every 0 --no-tensorboard --out run"
    assert train("iql", ["--preset", "iql-pendulum-mixed", "--quiet", *flags.split()]) == 0


def test_flags_win_over_a_preset() -> None:
    args = ["--preset", "ppo-pendulum", "--gamma", "0.9", "--seeds", "2", "--no-normalize-rewards", "--env", "x"]
    options, settings = parse("ppo", args)
    assert (options.env, options.seeds, options.total_steps) == ("x", "2", 2_000_000)
    assert (settings["gamma"], settings["normalize_rewards"], settings["num_envs"]) == (0.9, False, 32)
    assert settings["anneal"] is True
    assert parse("ppo", ["--preset=ppo-pendulum", "--total-steps", "64", "--no-anneal"])[1]["anneal"] is False


def test_a_preset_in_a_file_names_an_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "best.toml"
    file.write_text('algorithm = "ppo"\nenv = 5\ntotal_steps = 100\n')
    assert main(["train", "ppo", "--preset", str(file)]) == 2
    assert "best.toml: env = 5 must be an id" in capsys.readouterr().err


def test_a_preset_may_name_its_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = {"core": "gru", "hidden_sizes": [32], "use_previous": False}
    preset = PRESETS["ppo-cartpole"]._replace(name="x", env="CartPole-v1|select_observation(0,2)", settings={"model": model})
    monkeypatch.setitem(PRESETS, "x", preset)
    *_, command = output(capsys, "presets", "x").splitlines()
    assert "--model core=gru hidden_sizes=32, use_previous=False" in command and f"--env '{preset.env}'" in command
    options, settings = parse("ppo", shlex.split(command)[3:])
    agents = [
        jaxrl.make_ppo(options.env, **given)
        for given in (settings, parse("ppo", ["--preset", "x"])[1], {"model": {**model, "core": "gru"}})
    ]
    assert agents[0].spec == agents[1].spec == agents[2].spec and options.env == preset.env
    assert parse("ppo", ["--preset", "x", "--model", "core=lstm"])[1]["model"] == {"core": "lstm"}
    assert "model" not in parse("ppo", ["--preset", "x", "--model"])[1]  # without arguments: the default


@pytest.mark.parametrize(
    "flags, words", [(["gru"], "'gru' must be NAME=VALUE, such as core=gru"), (["a=1", "a=2"], "a is given twice")]
)
def test_arguments_of_a_network_are_names_and_values(flags: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse("ppo", ["--env", "CartPole-v1", "--model", *flags])


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "presets")
    for name, preset in PRESETS.items():
        row = next(line for line in out.splitlines() if line.startswith(f"{name} "))
        assert preset.result in row and preset.env in row and f" {short(preset.total_steps)} " in row
    assert next(line for line in out.splitlines() if line.startswith("ppo-cartpole ")).split()[3] == "500k"


# ------------------------------------------------------------------------------------------------------------------------ screen


def test_lists_import_no_jax() -> None:
    """Lists must appear quickly."""
    for args in (["algos"], ["presets"], ["presets", "ppo-cartpole"]):
        code = f"import sys; from jaxrl.runtime.cli.main import main; sys.exit(main({args}) or 'jax' in sys.modules)"
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), args


@pytest.mark.parametrize("command", ["envs", "algos", "presets"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0 and f"usage: jaxrl {command}" in capsys.readouterr().out


def test_tables_fold_on_a_terminal_and_never_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("the_first", "[0, 1] " * 20), ("the_second_name", "short")]
    tables.show_table(("name", "what"), rows)
    piped = capsys.readouterr().out
    assert [line.split()[0] for line in piped.splitlines()] == ["name", "the_first", "the_second_name"]
    assert piped == tables.plain_table(("name", "what"), rows) and piped.splitlines()[1].count("[0, 1]") == 20
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    tables.show_table(("name", "what"), rows)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert shown.count("[0, 1]") == 20 and max(map(len, shown.splitlines())) == 60 and "the_second_name" in shown


def test_help_folds_paragraphs_and_last_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = (
        "A paragraph that was written\nin lines of another width than those of this terminal.\n\ntry:\n"
        "  jaxrl one    what it does, in more words than fit\n"
        "  jaxrl two --flag with --many --words --that --are --copied\n"
        "╭─ a frame, which has been folded already ─╮\n"
    )
    assert tables.folded(text) == (
        "A paragraph that was written in lines of\nanother width than those of this\nterminal.\n\ntry:\n"
        "  jaxrl one    what it does, in more\n               words than fit\n"
        "  jaxrl two --flag with --many --words --that --are --copied\n"
        "╭─ a frame, which has been folded already ─╮\n"
    )
    monkeypatch.setenv("COLUMNS", "300")
    assert max(map(len, tables.folded("word " * 100).splitlines())) == tables.MAX_WIDTH - 1

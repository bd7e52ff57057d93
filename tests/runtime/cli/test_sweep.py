"""Sweeps: strict files, few jobs, a manifest for resuming, one table and one figure."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
import jaxrl.runtime.run
from jaxrl.agent import with_total_steps
from jaxrl.optimize.schedules import scheduled
from jaxrl.runtime.cli import sweep_job
from jaxrl.runtime.cli.commands.search import sweep as sweep_command
from jaxrl.runtime.cli.commands.search.sweep import SweepResult, collect
from jaxrl.runtime.cli.commands.train import parse
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.search import sweep as sweep_module
from jaxrl.runtime.search.sweep import Manifest, SweepFile, expand, job_folder, read_sweep, run_sweep
from jaxrl.runtime.training_loop.members import check_hyperparams, check_members
from jaxrl.runtime.training_loop.plan import make_plan
from jaxrl.runtime.training_loop.run_config import RunConfig
from jaxrl.settings.validation import check_seeds, merge_hyperparams
from tests.helpers.agents import IN_A_SPEC, LEARN_FROM_ROWS, gymnax_id
from tests.helpers.datasets import random_dataset
from tests.helpers.paths import ROOT

TEXT = """
algorithm = "ppo"
env = "tests.helpers.probes:action_choice"
total_steps = 64
seeds = [4, 9]
eval_episodes = 2
eval_explore = true

[settings]
rollout_length = 4
num_epochs = 1
num_minibatches = 1

[grid]
learning_rate = [1e-3, 1e-2, 1e38]
num_envs = [2, 4]
gamma = [0.9]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "grid.toml"
    path.write_text(TEXT)
    return path


def test_hyperparameters_share_a_program_and_structure_does_not(file: Path) -> None:
    jobs = expand(read_sweep(file))
    assert [(job.name, job.settings) for job in jobs] == [("num_envs=2", {"num_envs": 2}), ("num_envs=4", {"num_envs": 4})]
    assert jobs[0].members == [{"learning_rate": rate, "gamma": 0.9} for rate in (1e-3, 1e-2, 1e38)]
    only_data = SweepFile("ppo", "CartPole-v1", 100, settings={}, grid={"gamma": [0.9, 0.99]})
    assert [(job.name, len(job.members)) for job in expand(only_data)] == [("all", 2)]
    ratios = file.parent / "ratios.toml"
    ratios.write_text('algorithm = "dqn"\nenv = "x"\ntotal_steps = 1e5\n[grid]\nreplay_ratio = [8, 16.0]\nbatch_size = [32.0]\n')
    assert [job.name for job in expand(read_sweep(ratios))] == [f"replay_ratio={ratio} batch_size=32" for ratio in ("8", "16.0")]
    only_structure = SweepFile("ppo", "CartPole-v1", 100, settings={}, grid={"num_envs": [2, 4]})
    assert [job.members for job in expand(only_structure)] == [[{}], [{}]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("learning_rate", "learning_rat", r"\[grid\]: 'learning_rat' is unknown. Did you mean 'learning_rate'\?"),
        ("num_epochs", "num_epoch", r"\[settings\]: 'num_epoch' is unknown. Did you mean 'num_epochs'\?"),
        ("total_steps", "total_step", r"'total_step' is unknown. Did you mean 'total_steps'\?"),
        ('algorithm = "ppo"', 'algorithm = "pppo"', r"unknown algorithm 'pppo'. Did you mean 'ppo'\?"),
        ('env = "tests.helpers.probes:action_choice"', "", "lacks env"),
        ("gamma = [0.9]", "gamma = 0.9", r"gamma = 0.9 must be a list of values"),
        ("gamma = [0.9]", "gamma = []", r"gamma = \[\] must be a list of values"),
        ("gamma = [0.9]", "num_epochs = [1]", r"num_epochs is in \[settings\] and in \[grid\]"),
        ("seeds = [4, 9]", "seeds = [4,", "is not TOML"),
        ("total_steps = 64", "total_steps = 64.5", r"grid.toml: total_steps=64\.5 must be an integer >= 1"),
        ("total_steps = 64", 'total_steps = "64"', "total_steps='64' must be an integer >= 1"),
        ("seeds = [4, 9]", "seeds = 0", "seeds=0 must be at least 1"),
        ("seeds = [4, 9]", "seeds = [4, 4]", "4 occurs twice"),
        ("eval_episodes = 2", "eval_episodes = 0", "eval_episodes=0 must be an integer >= 1"),
        ("num_envs = [2, 4]", "num_envs = [2, 4.5]", r"grid.toml: num_envs=4\.5 must be an integer >= 1"),
        ("num_minibatches = 1", "num_minibatches = 3", "job 'num_envs=2' cannot be built: num_minibatches=3 must divide"),
        ("gamma = [0.9]", "gamma = [1.9]", r"gamma=1\.9 is not allowed: it must be a number in \[0, 1\]"),
        ("gamma = [0.9]", 'gamma = ["a"]', "gamma='a' must be a number in"),
        ("gamma = [0.9]", "gamma = [0.9, 0.9]", r"\[grid\] gamma = \[0.9, 0.9\] holds 0.9 twice"),
        ("gamma = [0.9]", 'anneal = ["yes"]', "anneal='yes' must be True or False"),
        ('env = "tests.helpers.probes:action_choice"', "env = 3", "env = 3 must be an id"),
        ('algorithm = "ppo"', 'algorithm = ["ppo"]', r"algorithm = \['ppo'\] must be the name of one"),
        ("gamma = [0.9]", 'core = ["gru"]', "'core' is unknown. It is called 'model' here"),
        (
            "gamma = [0.9]",
            'model = ["gru"]',
            "model = 'gru' must be a table of arguments of the network",
        ),
        ("gamma = [0.9]", 'model = [{cor = "gru"}]', "actor_critic takes no 'cor'. Did you mean 'core'?"),
        ("gamma = [0.9]", 'model = [{core = "gruu"}]', "core='gruu' is unknown: choose one of"),
        ("gamma = [0.9]", "model = [{shared = 1}]", "shared=1 must be True or False"),
        ("gamma = [0.9]", "model = [{core_size = 0}]", "core_size=0 must be an integer >= 1"),
        ("gamma = [0.9]", "model = [{hidden_sizes = [0]}]", r"hidden_sizes=\[0\] must be positive integers"),
        ("gamma = [0.9]", "model = [{}, {}]", r"\[grid\] model = \[{}, {}\] holds {} twice"),
        ("num_minibatches = 1", 'num_minibatches = 4\nmodel = {core = "gru"}', "num_minibatches=4 must divide num_envs=2"),
    ],
)
def test_a_wrong_file_is_named(old: str, new: str, message: str, file: Path) -> None:
    file.write_text(TEXT.replace(old, new, 1))
    with pytest.raises((TypeError, ValueError), match=message):
        read_sweep(file)


@pytest.mark.parametrize("name", ["settings", "grid"])
def test_tables_are_tables(name: str, file: Path) -> None:
    file.write_text(re.sub(rf"\[{name}\].*?(?=\n\[|$)", "", f"{name} = 5\n{TEXT}", flags=re.DOTALL))
    with pytest.raises(TypeError, match=rf"grid.toml: {name} = 5 must be a table, \[{name}\]"):
        read_sweep(file)


@pytest.mark.parametrize("text", ["{}", "[]", '{"sweep": 3, "done": []}', "x"])
def test_a_damaged_list_of_jobs_is_named(text: str, file: Path) -> None:
    folder = file.parent / "damaged"
    folder.mkdir()
    (folder / "sweep.json").write_text(text)
    with pytest.raises(ValueError, match=r"its sweep.json is damaged. Restore it from a copy"):
        Manifest(folder, read_sweep(file))


def test_networks_are_structure(file: Path) -> None:
    """Each needs a program. {} is the default."""
    models = 'model = [{}, {core = "gru", hidden_sizes = [8, 4]}]'
    file.write_text(TEXT.replace("num_envs = [2, 4]", models))
    jobs = expand(read_sweep(file))
    assert [job.name for job in jobs] == ["model=default", "model=core=gru,hidden_sizes=8,4"]
    assert jobs[1].settings == {"model": {"core": "gru", "hidden_sizes": [8, 4]}} and len(jobs[1].members) == 3
    Manifest(file.parent / "out", read_sweep(file))
    kept = SweepFile(**json.loads((file.parent / "out" / "sweep.json").read_text())["sweep"])
    assert [job.name for job in expand(kept)] == [job.name for job in jobs]
    table = file.parent / "results.csv"
    sweep_command.write_table([SweepResult(job.settings, np.array([1.0, 3.0])) for job in jobs], table)
    with table.open() as text:
        assert [row["model"] for row in csv.DictReader(text)] == ["default", "core=gru,hidden_sizes=8,4"]


def test_whole_numbers_may_be_written_as_people_do(file: Path) -> None:
    """1e5 is an integer, and a learning rate of 0 is allowed, as everywhere."""
    text = TEXT.replace("= 64", "= 6.4e1", 1).replace("[2, 4]", "[2.0, 4e0]").replace("= 4\n", "= 4.0\n").replace("1e-2,", "0,")
    file.write_text(text)
    sweep = read_sweep(file)
    assert (sweep.total_steps, sweep.grid["num_envs"], sweep.settings["rollout_length"]) == (64, [2, 4], 4)
    assert all(type(x) is int for x in (sweep.total_steps, *sweep.grid["num_envs"], sweep.settings["rollout_length"]))
    assert [job.name for job in expand(sweep)] == ["num_envs=2", "num_envs=4"]
    assert sweep.grid["learning_rate"][1] == 0


DATA_SWEEP = """
algorithm = "bc"
env = "Pendulum-v1"
total_steps = 8
seeds = 2
eval_episodes = 2
data = "{}"
[settings]
updates = 4
model = {{hidden_sizes = [8]}}
[grid]
best = [0.5]
learning_rate = [1e-3, 1e-2]
"""


@pytest.mark.slow
def test_a_sweep_learns_from_a_dataset(tmp_path: Path) -> None:
    """Each job reads the file once, for all of its members."""
    jaxrl.save_dataset(tmp_path / "mixed.npz", random_dataset("Pendulum-v1"))
    (tmp_path / "grid.toml").write_text(DATA_SWEEP.format(tmp_path / "mixed.npz"))
    sweep = read_sweep(tmp_path / "grid.toml")
    jobs = run_sweep(sweep, tmp_path / "out", say=lambda line: None)
    assert [job.name for job in jobs] == ["best=0.5"]
    for job in jobs:
        config = json.loads((job_folder(tmp_path / "out", job.name) / "config.json").read_text())
        assert config["agent"]["parts"]["data"]["dataset"]["path"] == str(tmp_path / "mixed.npz")
        assert config["agent"]["settings"]["best"] == job.settings["best"] and len(config["run"]["seeds"]) == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('data = "{}"', "", r'BC learns from a dataset alone: give data = "FILE"'),
        ('data = "{}"', "data = 3", r'data = 3 must be a file, such as "mixed.npz"'),
        ('"bc"', '"iql"', r"'best' is unknown"),
        ("updates = 4", "updates = 0", r"updates=0 must be an integer >= 1"),
    ],
)
def test_datasets_of_sweeps_that_do_not_fit(old: str, new: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(DATA_SWEEP.replace(old, new).replace("{}", "x.npz").replace("{{", "{").replace("}}", "}"))
    with pytest.raises(ValueError, match=message):
        read_sweep(tmp_path / "grid.toml")


def test_an_algorithm_without_replay_takes_no_dataset(file: Path) -> None:
    file.write_text(TEXT.replace("total_steps", 'data = "x.npz"\ntotal_steps'))
    with pytest.raises(ValueError, match="PPO takes no data: it learns from rollouts"):
        read_sweep(file)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", IN_A_SPEC)
def test_the_same_words_give_the_same_agent_in_python_train_and_a_sweep(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same spec, and the same learning rate at every iteration."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(jaxrl.runtime.run, "run", lambda agent, *args, **given: asked.append((agent, *args, given)))
    sizes = {"num_envs": 4, "rollout_length": 48} if algorithm in LEARN_FROM_ROWS else {"members": 4, "horizon": 48}
    number = "gamma" if algorithm in LEARN_FROM_ROWS else "reward_shift"
    words = {**sizes, number: 0.9, "learning_rate": 1.7e-3}
    model = {"hidden_sizes": [8], "layer_norm": True}
    toml = "\n".join(f"{name} = {value}" for name, value in words.items())
    env = gymnax_id(algorithm)
    head = f'algorithm = "{algorithm}"\nenv = "{env}"\ntotal_steps = 5000\n'
    grid = "\n".join(f"{name} = [{value}]" for name, value in words.items())
    network = "model = {hidden_sizes = [8], layer_norm = true}\n"
    for i, tables in enumerate((f"[settings]\n{network}{toml}\n[grid]\n", f"[settings]\n{network}[grid]\n{grid}\n")):
        (tmp_path / "sweep.toml").write_text(head + tables)
        sweep = read_sweep(tmp_path / "sweep.toml")
        Manifest(tmp_path / f"{i}", sweep)
        sweep_job.main(str(tmp_path / f"{i}"), expand(sweep)[0].name)
    flags = [text for name, value in words.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    flags += ["--model", "hidden_sizes=8,", "layer_norm=True"]
    assert main(["train", algorithm, "--env", env, "--total-steps", "5000", *flags, "--out", str(tmp_path / "run")]) == 0
    jaxrl.runtime.run.run(getattr(jaxrl, f"make_{algorithm}")(env, model=model, **words), 5000)

    rates, data = [], []
    for agent, total_steps, given in asked:
        plan = make_plan(agent, RunConfig(total_steps))
        values = check_hyperparams(agent, given.get("hyperparams"), 1) or {}
        one = {name: np.ravel(value)[0] for name, value in values.items()}
        data.append(merge_hyperparams(agent.hyperparams, with_total_steps(agent, one, plan.total_steps)))
        rows = agent.steps_per_iteration * agent.spec["settings"]["anneal"]
        iterations = jnp.arange(plan.warmup_iterations, plan.warmup_iterations + plan.iterations)
        rate = jax.jit(lambda i, hp, n=rows: scheduled(hp, {}, i, annealed_rows=n).learning_rate)(iterations, data[-1])
        rates.append(np.atleast_1d(rate))
    in_settings, in_grid, in_train, in_python = (agent.spec for agent, *_ in asked)
    assert in_settings == in_train == in_python
    changed = {name for name, value in in_grid["settings"].items() if value != in_python["settings"][name]}
    assert changed == {number, "learning_rate"}  # set for the members of the run, but for no agent
    assert data[1:] == data[:-1] and getattr(data[0], number) == np.float32(0.9)
    full, falls = words["learning_rate"], in_python["settings"]["anneal"]
    assert 0.75 * full < rates[0][0] <= np.float32(full) and (0 < rates[0][-1] < 0.06 * full or not falls)
    np.testing.assert_array_equal(rates[1:], rates[:-1])


def test_a_file_that_is_mended_before_anything_ran_is_no_other_sweep(file: Path, tmp_path: Path) -> None:
    out, wrong = tmp_path / "sweep", read_sweep(file)
    mended = dataclasses.replace(wrong, env="tests.helpers.probes:memory")
    Manifest(out, wrong)
    assert Manifest(out, mended).done == []
    assert json.loads((out / "sweep.json").read_text())["sweep"]["env"] == "tests.helpers.probes:memory"
    (out / "jobs").mkdir()
    with pytest.raises(FileExistsError, match="holds another sweep"):
        Manifest(out, wrong)


def test_what_a_kill_leaves_before_the_manifest_locks_no_folder(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    out.mkdir()
    (out / "sweep.json.tmp").symlink_to(tmp_path / "elsewhere")
    assert Manifest(out, read_sweep(file)).done == []
    assert [path.name for path in out.iterdir()] == ["sweep.json"] and not (tmp_path / "elsewhere").exists()
    assert not (out / "sweep.json").is_symlink()


def test_a_sweep_whose_checkpoints_would_be_lost_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"out='.*a\[b\]/sweep' cannot hold checkpoints"):
        Manifest(tmp_path / "a[b]" / "sweep", read_sweep(file))
    assert not (tmp_path / "a[b]").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no sweep file"):
        read_sweep(tmp_path / "none.toml")


@pytest.mark.slow
def test_a_sweep_runs_resumes_and_leaves_a_table_and_a_figure(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out, started = tmp_path / "out", []
    original = sweep_module.run_job

    def fail_second(command: list[str]) -> tuple[int, int]:
        started.append(command[-2])
        return original([sys.executable, "-c", "raise SystemExit(3)"] if len(started) == 2 else command)

    monkeypatch.setattr(sweep_module, "run_job", fail_second)
    assert main(["sweep", str(file), "--out", str(out), "--trust", "tests"]) == 2
    assert "job 2 of 2: num_envs=4 failed with exit code 3" in capfd.readouterr().err
    assert main(["sweep", str(file), "--out", str(out), "--trust", "tests"]) == 0
    assert started == ["num_envs=2", "num_envs=4", "num_envs=4"]
    assert json.loads((out / "sweep.json").read_text())["done"] == ["num_envs=2", "num_envs=4"]
    assert "job 1 of 2: num_envs=2: done before" in capfd.readouterr().out

    rows = list(csv.DictReader((out / "results.csv").open()))
    assert len(rows) == 6 and (out / "results.png").stat().st_size > 5000
    lost = [row for row in rows if row["learning_rate"] == "1e+38"]
    assert len(lost) == 2 and {row["diverged"] for row in lost} == {"2"} and {row["mean_return"] for row in lost} == {""}
    assert rows[-2:] == lost  # best first
    config = json.loads((job_folder(out, expand(read_sweep(file))[0].name) / "config.json").read_text())
    assert config["run"]["seeds"] == [4, 9] * 3 and config["run"]["eval_explore"] is True
    flags = "--env tests.helpers.probes:action_choice --rollout-length 4 --num-epochs 1 --num-minibatches 1 --num-envs 2"
    options, settings = parse("ppo", flags.split())
    assert jaxrl.make_ppo(options.env, **settings).spec == config["agent"]  # the same text, the same agent

    file.write_text(TEXT.replace("gamma = [0.9]", "gamma = [0.8]"))
    assert main(["sweep", str(file), "--out", str(out), "--trust", "tests"]) == 2
    assert "holds another sweep" in capfd.readouterr().err


def test_show_lists_the_jobs_and_runs_nothing(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(file), "--out", str(tmp_path / "out"), "--show"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "num_envs=2: 3 combinations of hyperparameters in one program",
        "num_envs=4: 3 combinations of hyperparameters in one program",
    ]
    assert not (tmp_path / "out").exists()


def test_the_last_known_return_counts_and_diverged_seeds_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = SweepFile("ppo", "e", 10, settings={}, grid={"gamma": [0.8, 0.9]})
    (job,) = expand(sweep)
    folder = job_folder(tmp_path, job.name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"agent": {}, "run": {"seeds": [0, 1, 0, 1]}}))
    records = [
        {"iteration": 1, "diverged": [False] * 4, "charts/episodic_return": [1.0, 2.0, 3.0, 4.0]},
        {"iteration": 2, "diverged": [False, False, False, True], "evaluation/episodic_return": [10.0, None, 30.0, None]},
    ]
    records = [{"env_steps": [8] * 4, "rows": 8, "seconds": 1.0, **record} for record in records]
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    results = collect([job], tmp_path)
    assert [r.settings for r in results] == [{"gamma": 0.8}, {"gamma": 0.9}]
    np.testing.assert_array_equal([r.returns for r in results], [[10.0, 2.0], [30.0, np.nan]])
    path = tmp_path / "picture.png"
    sweep_command.draw([*results, SweepResult({"gamma": 0.7}, np.full(2, np.nan))], sweep, path)
    assert path.stat().st_size > 5000


def test_seeds_may_repeat_where_hyperparameters_differ() -> None:
    assert check_seeds([1, 1]) == [1, 1]
    check_members([1, 1], {"gamma": np.array([0.9, 0.8])})
    check_members(range(100_000))  # in a second, not in an hour
    with pytest.raises(ValueError, match="1 occurs twice with the same hyperparameters"):
        check_members([1, 1], {"gamma": 0.9})
    with pytest.raises(ValueError, match="1 occurs twice: "):
        check_members([1, 1])

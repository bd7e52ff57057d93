"""The registry: its entries are correct, and one entry adds an algorithm in all places that list algorithms."""

from __future__ import annotations

import importlib
import inspect
import runpy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jaxrl
from benchmarks.experiments import of_preset
from examples.custom_algorithm import REINFORCE, make_reinforce
from jaxrl.algorithms import ALGORITHMS, Entry
from jaxrl.algorithms.presets import Preset, Score
from jaxrl.builder.networks import own_network
from jaxrl.builder.spec import algorithm_name
from jaxrl.builder.trusted_imports import Untrusted
from jaxrl.runtime.cli.commands.train import parse
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.cli.user_code import import_algorithm
from jaxrl.runtime.search.sweep import read_sweep
from tests.helpers import probes
from tests.helpers.agents import Tiny, every_algorithm, required, suited, tiny

OWN = "examples.custom_algorithm:REINFORCE"
SWEEP = 'algorithm = "{}"\nenv = "CartPole-v1"\ntotal_steps = 64\n[grid]\ngamma = [0.9, 0.95]\nnum_envs = [2, 4]\n'


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Entry]:
    """Register the example's algorithm under this name."""
    monkeypatch.delitem(vars(jaxrl), "make_reinforce", raising=False)
    monkeypatch.setitem(ALGORITHMS, "reinforce", REINFORCE)
    yield REINFORCE
    vars(jaxrl).pop("make_reinforce", None)


@every_algorithm
def test_an_entry_says_what_its_file_has(algorithm: str) -> None:
    entry = ALGORITHMS[algorithm]
    settings = {name: value for name, value in tiny(algorithm).settings.items() if name not in ("model", "critic")}
    assert entry.name == algorithm and entry.load().make is getattr(jaxrl, entry.builder)
    for env in (probes.action_choice(), probes.target_action()):
        kind = type(env.action_space).__name__
        if kind in entry.actions:
            assert entry.load().make(env, **settings, **required(algorithm, env)).env.name == env.name
        else:
            with pytest.raises(TypeError, match=f"{entry.title} needs a {' or '.join(entry.actions)} .*: make_.* takes .*{kind}"):
                entry.load().make(env, **settings, **required(algorithm, env))


@every_algorithm
def test_an_entry_names_the_network_of_its_builder(algorithm: str) -> None:
    """All arguments of its network can be given."""
    entry = ALGORITHMS[algorithm]
    make = partial(entry.load().make, suited(algorithm, "CartPole-v1"), **required(algorithm, "CartPole-v1"))
    agent = make(model={"hidden_sizes": (8,), "dtype": "float32"})
    assert agent.spec["parts"]["model"]["partial"] == {"import": f"jaxrl.models:{entry.network}"}
    with pytest.raises(TypeError, match=f"{entry.network} takes no 'x'. It takes: {', '.join(arguments(entry))}$"):
        make(model={"x": 1})


def arguments(entry: Entry) -> list[str]:
    return list(inspect.signature(own_network(entry)).parameters)[2:]


def test_titles_are_unique() -> None:
    assert len({entry.title for entry in ALGORITHMS.values()}) == len(ALGORITHMS)


def test_one_entry_is_found_by_face_spec_and_benchmarks(registered: Entry) -> None:
    assert jaxrl.make_reinforce is make_reinforce and "make_reinforce" in dir(jaxrl)
    spec = jaxrl.make_reinforce("CartPole-v1").spec
    assert spec is not None and algorithm_name(spec) == "Reinforce" and jaxrl.build(spec).spec == spec
    preset = Preset("reinforce-cartpole", "reinforce", "CartPole-v1", {}, 64, 1, Score(1, 1, 1, 1, ""), 10)
    assert getattr(jaxrl, of_preset(preset).builder) is make_reinforce


def test_one_entry_is_found_by_the_command_line(registered: Entry, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for args in (["train", "--help"], ["algos"], ["algos", "reinforce"]):
        assert main(args) == 0
        assert "policy gradient with a baseline" in capsys.readouterr().out
    options, settings = parse("reinforce", ["--env", "x", "--gamma", "0.5"])
    assert options.env == "x" and settings["gamma"] == 0.5 and settings["num_envs"] == 16
    (tmp_path / "grid.toml").write_text(SWEEP.format("reinforce"))
    assert main(["sweep", str(tmp_path / "grid.toml"), "--show"]) == 0
    assert "num_envs=2: 2 combinations" in capsys.readouterr().out


def test_one_entry_is_found_by_the_documentation(registered: Entry) -> None:
    hooks = SimpleNamespace(**runpy.run_path("docs/hooks.py"))
    assert hooks.page(registered) == "algorithms/reinforce.md"
    assert hooks.source_page(registered) == "algorithms/reinforce-source.md"
    assert Path("examples/custom_algorithm.py").read_text() in hooks.source(registered)
    for mark, shown in (
        ("table", "| [Reinforce](reinforce.md) | policy gradient with a baseline |"),
        ("commands", "<!-- help: train reinforce -->"),
        ("builders", "::: examples.custom_algorithm.make_reinforce"),
        ("parts", "::: examples.custom_algorithm\n"),
    ):
        assert shown in hooks.listed(f"<!-- algorithms: {mark} -->")


def test_one_entry_is_found_by_the_tests(registered: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Tiny({"num_envs": 2, "rollout_length": 4}, lambda *given: 0.0, ("CartPole-v1", {}))
    monkeypatch.setitem(sys.modules, "tests.algorithms.test_reinforce", SimpleNamespace(TINY=own))  # type: ignore[misc]
    agents = SimpleNamespace(**runpy.run_path("tests/helpers/agents.py"))
    assert (*ALGORITHMS,) == agents.ALGORITHM_NAMES and "reinforce" in agents.ALGORITHM_NAMES
    assert [agents.every_algorithm.args[1], len(agents.every_builder.args[1])] == [agents.ALGORITHM_NAMES, len(agents.PLAYING)]
    assert "reinforce" not in agents.REPRESENTATIVES and "ppo" in agents.REPRESENTATIVES  # one per family
    assert agents.cartpole("reinforce").num_envs == 2


# ------------------------------------------------------------------------------------------------------------- custom algorithms


def test_train_and_algos_take_an_entry_of_the_users(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(ALGORITHMS, OWN, REINFORCE)  # monkeypatch removes it again
    trained: list[Any] = []
    monkeypatch.setattr("jaxrl.runtime.run.run", lambda *args, **settings: trained.append((args, settings)))
    del ALGORITHMS[OWN]
    assert main(["train", OWN, "--env", "CartPole-v1", "--num-envs", "3", "--seeds", "2"]) == 0
    (((agent, _), given),) = trained
    assert agent.num_envs == 3 and str(given["out"]) == "runs/reinforce-CartPole-v1"
    assert main(["algos", OWN]) == 0
    assert "examples.custom_algorithm.make_reinforce(env, *, model=None, " in capsys.readouterr().out


def test_a_sweep_file_runs_an_algorithm_of_the_users_only_if_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(ALGORITHMS, OWN, REINFORCE)
    del ALGORITHMS[OWN]
    (tmp_path / "grid.toml").write_text(SWEEP.format(OWN))
    with pytest.raises(Untrusted, match=r"algorithm is 'examples\.custom_algorithm:REINFORCE'.*--trust examples"):
        read_sweep(tmp_path / "grid.toml", lambda algorithm: import_algorithm(algorithm, ()))
    with pytest.raises(ValueError, match="unknown algorithm"):
        read_sweep(tmp_path / "grid.toml")
    sweep = read_sweep(tmp_path / "grid.toml", lambda algorithm: import_algorithm(algorithm, ("examples",)))
    assert sweep.algorithm == OWN and sweep.grid == {"gamma": [0.9, 0.95], "num_envs": [2, 4]}


@pytest.mark.parametrize(
    "name", ["examples.custom_algorithm:make_reinforce", "examples.custom_algorithm:GONE", "nowhere:X", "a b:X"]
)
def test_what_is_no_entry_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "--env", "x"]) == 2
    assert capsys.readouterr().err.startswith(f"jaxrl: algorithm {name!r}: ") and name not in ALGORITHMS


def test_an_entry_that_names_what_is_not_there_says_so() -> None:
    with pytest.raises(
        ValueError, match=r"custom_algorithm lacks make_x, XConfig, XHyperparams, as named by name='x' and title='X!'"
    ):
        REINFORCE._replace(name="x", title="X!").load()
    assert importlib.import_module(REINFORCE.module).REINFORCE is REINFORCE

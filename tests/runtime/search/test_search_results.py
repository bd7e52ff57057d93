"""Searches from their file to their results: comparison, status, files, mistakes and the command line."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxrl
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.cli.preset_file import named_preset
from jaxrl.runtime.search.log import BEST, MANIFEST, TRIALS
from jaxrl.runtime.search.optuna_adviser import Mirror
from jaxrl.runtime.search.results import comparison as comparison_module
from jaxrl.runtime.search.results.comparison import Compared, Comparison, Interval, compare
from jaxrl.runtime.search.results.report import PICTURE, RESULTS, best_file, in_toml
from jaxrl.runtime.search.search import search
from jaxrl.runtime.search.search_file import read_search
from jaxrl.runtime.search.trials import Trials, asked_event, returns_event
from tests.helpers.searches import SEARCH, with_options


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of a whole search with a comparison."""
    folder = tmp_path_factory.mktemp("finished") / "search"
    return folder, search(with_options(top=2, test_seeds=3), out=folder, quiet=True)


def test_candidates_of_a_structure_train_together_up_to_a_number_of_lanes() -> None:
    wide, narrow = {"model": {"hidden_sizes": [64]}}, {"model": {"hidden_sizes": [8]}}
    structures = [wide, narrow, wide, wide]
    assert comparison_module._runs(structures, 16) == [[0, 2], [3], [1]]
    assert comparison_module._runs(structures, 100) == [[0], [2], [3], [1]]
    assert comparison_module._runs(structures, 4) == [[0, 2, 3], [1]]


@pytest.mark.slow
def test_the_best_are_compared_on_other_seeds(finished: tuple[Path, Any]) -> None:
    folder, result = finished
    comparison = result.comparison
    assert len(comparison.best) == 2 and comparison.default.trial is None and comparison.default.returns.shape == (3,)
    assert comparison.best[0].tested.iqm >= comparison.best[1].tested.iqm
    assert result.settings == SEARCH["settings"] | result.trials.all[comparison.best[0].trial].settings
    config = json.loads((folder / "comparison" / "0" / "config.json").read_text())
    assert config["run"]["seeds"] == [6, 7, 8] * 3
    defaults = jaxrl.make_ppo(SEARCH["env"], **SEARCH["settings"]).hyperparams
    assert config["run"]["hyperparams"]["learning_rate"][:3] == pytest.approx([defaults.learning_rate] * 3)


def test_its_status(finished: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder, result = finished
    assert main(["status", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "search of ppo · Pendulum-v1" in said and f"{len(result.trials.all)} have begun" in said
    assert main(["status", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["state"]) == ("search", "finished") and found["ended"] == found["trials"]
    assert found["best_trial"] == result.trials.complete[0].number
    assert found["best_score"] == result.trials.score(result.trials.complete[0])


def test_a_repeated_call_reports_the_same(finished: tuple[Path, Any]) -> None:
    folder, result = finished
    before = {name: (folder / name).read_bytes() for name in (TRIALS, RESULTS, BEST, PICTURE)}
    again = search(with_options(top=2, test_seeds=3), out=folder, quiet=True)
    assert again.settings == result.settings and again.score == result.score
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_files_of_results(finished: tuple[Path, Any]) -> None:
    folder, result = finished
    with (folder / RESULTS).open() as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == len(result.trials.all) + 1 and rows[-1]["trial"] == "default"
    assert rows[0]["end"] == "complete" and float(rows[0]["score"]) == pytest.approx(
        result.trials.score(result.trials.complete[0]), rel=1e-6
    )
    best = tomllib.loads((folder / BEST).read_text())
    assert best["settings"] == result.settings and best["algorithm"] == "ppo"
    preset = named_preset(str(folder / BEST), "ppo")
    assert preset.env == SEARCH["env"] and preset.settings == result.settings and preset.num_seeds == 2
    with pytest.raises(ValueError, match="is for ppo: use jaxrl train ppo --preset"):
        named_preset(str(folder / BEST), "dqn")


def test_a_wrong_preset_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for entry in ('total_steps = "a"', "total_steps = 8\nseeds = [1, 2]"):
        file.write_text(f'algorithm = "ppo"\nenv = "CartPole-v1"\n{entry}\n')
        with pytest.raises((TypeError, ValueError), match=r"mine.toml: (total_steps|seeds)=.* must be an integer"):
            named_preset(str(file))


def test_values_in_toml() -> None:
    values = {"a": 1, "b": 0.1, "c": True, "d": "x\ny", "e": [1, 2], "f": {"g": [0.5], "h.i": "j"}, "k": {}}
    assert tomllib.loads("\n".join(f"{name} = {in_toml(value)}" for name, value in values.items())) == values


def test_values_that_json_writes_otherwise() -> None:
    assert in_toml({"a": None, "b": {"c": None}, "d": [{"e": None, "f": 1}]}) == "{ b = {}, d = [{ f = 1 }] }"
    assert [in_toml(value) for value in (math.inf, -math.inf, math.nan, 1e-5)] == ["inf", "-inf", "nan", "1e-05"]
    assert tomllib.loads(f"x = {in_toml([math.inf, 1e-5, 1e22])}") == {"x": [math.inf, 1e-5, 1e22]}


def test_settings_that_are_none_are_not_in_the_best_file() -> None:
    settings = {"max_grad_norm": None, "model": {"hidden_sizes": [8], "core": None}}
    read = dataclasses.replace(read_search(SEARCH), settings=settings)
    trials = Trials(read.rungs, "final")
    trials.apply(asked_event(0, 0, 0, 0, {"learning_rate": 0.01}))
    trials.apply(returns_event(4, trials.all[0], 512, [1.0, 2.0]))
    text = best_file(read, trials, trials.all[0], None)
    assert tomllib.loads(text)["settings"] == {"model": {"hidden_sizes": [8]}, "learning_rate": 0.01}
    assert "# max_grad_norm = None: TOML has no such value" in text


def test_a_mistake_leaves_no_folder_behind(tmp_path: Path) -> None:
    """So that the corrected file may use it."""
    with pytest.raises(ValueError, match="CartPol-v1"):
        search(dict(SEARCH) | {"env": "CartPol-v1"}, out=tmp_path / "search", quiet=True)
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"total_steps": 300}, r"holds another search: total_steps is 512 there and 300 here"),
        ({"seeds": 3}, "holds another search: seeds is"),
    ],
)
def test_a_changed_search_is_refused(finished: tuple[Path, Any], change: dict[str, Any], text: str) -> None:
    with pytest.raises(FileExistsError, match=text):
        search(with_options(top=2, test_seeds=3) | change, out=finished[0], quiet=True)


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty, and holds no search"):
        search(SEARCH, out=tmp_path, quiet=True)


def test_two_searches_in_one_folder(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / MANIFEST).write_text(json.dumps({"search": SEARCH}))
    with open(tmp_path / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FileExistsError, match="is in use by another process"):
            search(SEARCH, out=tmp_path, quiet=True)


BUILDS: dict[str, tuple[dict[str, Any], str]] = {
    "structure": (
        {"space": {"num_minibatches": [1, 3], "gamma": [0.9]}, "settings": {"num_envs": 2, "rollout_length": 8}},
        r"trials with num_minibatches = 3 cannot be built: num_minibatches=3 must divide",
    ),
    "host": ({"env": "gymnasium:CartPole-v1"}, "a search needs a pure environment, but .* runs on the host"),
    "two players": (
        {"env": "jaxrl:TicTacToe", "settings": {"num_envs": 2, "rollout_length": 8}},
        r"say who wins, not how well both play: compare agents by jaxrl\.arena",
    ),
    "data": ({"algorithm": "bc", "settings": {}, "space": {"learning_rate": [0.1]}}, "cannot be searched"),
}


@pytest.mark.parametrize("case", BUILDS)
def test_what_cannot_be_built_is_one_line(case: str) -> None:
    change, text = BUILDS[case]
    with pytest.raises((TypeError, ValueError), match=text):
        search(SEARCH | change, quiet=True)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(
        'algorithm = "ppo"\nenv = "jaxrl:BitFlip"\ntotal_steps = 64\nseeds = 1\n[settings]\nnum_envs = 2\nrollout_length = 8\n'
        '[space]\nlearning_rate = { low = 1e-4, high = 1e-2, log = true }\n[search]\nmethod = "sobol"\ntrials = 2\nbatch = 2\n'
        "top = 0\n"
    )
    assert main(["search", "tiny.toml"]) == 0
    said = capsys.readouterr()
    assert "sobol search of ppo on jaxrl:BitFlip: 2 trials × 1 seeds" in said.out and "2/2 trials" in said.out
    assert "train with the best settings: jaxrl train ppo --preset runs/tiny/best.toml" in said.out
    assert main(["search", "tini.toml"]) == 2
    assert "there is no search file 'tini.toml'" in capsys.readouterr().err


def test_intervals_and_the_sentence() -> None:
    assert all(map(math.isnan, Interval.of([math.nan])))
    good = Compared(1, {}, Interval.of([9.0]), np.array([8.0, 9.0, 10.0, math.nan]))
    bad = Compared(None, {}, None, np.array([1.0, 2.0, 9.0]))
    comparison = Comparison([good], bad)
    assert comparison.improvement == pytest.approx((2 + 2.5 + 3) / 9) and not comparison.is_better
    assert comparison.in_words().endswith("probability of improvement 83%: no better than the default settings")
    clear = Comparison([good], bad._replace(returns=np.array([1.0, 2.0])))
    assert clear.is_better and clear.in_words().endswith("probability of improvement 100%")


def test_a_study_of_another_search_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    storage, space = str(tmp_path / "journal.log"), read_search(SEARCH).space
    Mirror(storage, "search", space, SEARCH)
    Mirror(storage, "search", space, json.loads(json.dumps(SEARCH)))  # resumed
    Mirror(storage, "other", space, SEARCH | {"total_steps": 300})
    with pytest.raises(
        ValueError, match=r"the study 'search' in .* another search: total_steps is 512 there and 300 here\. Give"
    ):
        Mirror(storage, "search", space, SEARCH | {"total_steps": 300})


@pytest.mark.slow
def test_trials_are_copied_to_optuna(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path / 'copy.db'}"
    result = search(SEARCH, out=tmp_path / "search", storage=storage, quiet=True)
    search(SEARCH, out=tmp_path / "search", storage=storage, quiet=True)  # nothing is copied twice
    copied = optuna.load_study(storage=storage, study_name="search").trials
    assert [trial.user_attrs["trial"] for trial in copied] == [*{t.user_attrs["trial"]: 0 for t in copied}]
    assert {trial.user_attrs["trial"] for trial in copied} == {trial.number for trial in result.trials.all}
    by_number = {trial.user_attrs["trial"]: trial for trial in copied}
    for trial in result.trials.complete:
        assert by_number[trial.number].value == result.trials.score(trial)
    with pytest.raises(ValueError, match=r"storage='sqlite:////nowhere/x\.db' cannot be opened"):
        search(SEARCH, storage="sqlite:////nowhere/x.db", quiet=True)


def test_a_diverged_seed_does_not_flatter_its_settings(finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    result = finished[1]
    rows = np.array([[-900.0, -800.0, -700.0], [-100.0, math.nan, math.nan], [-500.0, -400.0, -300.0]])
    monkeypatch.setattr(comparison_module, "_train", lambda *_, **__: rows)
    found = compare(read_search(with_options(top=2, test_seeds=3)), result.trials, None, quiet=True)
    assert found is not None and [each.returns.tolist() for each in found.best] == [[-500, -400, -300], [-100, -900, -900]]

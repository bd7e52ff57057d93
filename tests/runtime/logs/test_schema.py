"""Impossible contents of a run's files: one line names them, for every reader."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.runtime.checkpoint.manifest import render
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.logs.schema import NEEDED_OF_RECORD, PER_SEED, check_config, check_record


def altered(data: Any, path: str, value: Any) -> Any:
    """Return a copy with another value at a dotted path. ``...`` removes it."""
    copy = here = json.loads(json.dumps(data))
    *above, last = path.split(".")
    for name in above:
        here = here[name]
    here[last] = value
    if value is ...:
        del here[last]
    return copy


COMMANDS = (["plot"], ["eval"], ["record"], ["train", "--resume"])


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("agent", ..., "it lacks 'agent'"),
        ("agent", [], "its 'agent' is []"),
        ("agent.settings", None, "its 'agent.settings' is null"),
        ("agent.parts", 5, "its 'agent.parts' is 5"),
        ("run", "x", "its 'run' is \"x\""),
        ("run.seeds", ..., "it lacks 'run.seeds'"),
        ("run.seeds", [], "its 'run.seeds' is []"),
        ("run.seeds", [1, "a"], "its 'run.seeds' is [1, \"a\"]"),
        ("run.seeds", {"a": 1}, "its 'run.seeds' is {\"a\": 1}"),
        ("run.hyperparams", [1], "its 'run.hyperparams' is [1]"),
        ("run.hyperparams", {"gamma": [0.9]}, "its 'run.hyperparams.gamma' is [0.9]"),
        ("run.hyperparams", {"gamma": {}}, "its 'run.hyperparams.gamma' is {}"),
        ("output", None, "its 'output' is null"),
        ("spaces", 5, "its 'spaces' is 5"),
        ("spaces", {}, "it lacks 'spaces.observation'"),
        ("versions", [], "its 'versions' is []"),
        ("id", 5, "its 'id' is 5"),
    ],
)
def test_a_config_that_cannot_be_is_one_line(
    path: str, value: Any, words: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads((trained / "config.json").read_text())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "records.jsonl").touch()
    (tmp_path / "run" / "config.json").write_text(json.dumps(altered(whole, path, value)))
    for command in COMMANDS:
        assert main([*command, str(tmp_path / "run")]) == 2
        err = capsys.readouterr().err
        assert f"is invalid: {words}. Restore it from a copy" in err and err.count("\n") == 1


def test_configs_of_older_runs_can_be() -> None:
    for config in (
        {"agent": {}, "run": {"seeds": [0]}},
        {"agent": {}, "run": {"seeds": [0], "hyperparams": None}, "spaces": None},
    ):
        assert check_config(config) is config
    for nothing in ([], None, 5, "x"):
        with pytest.raises(ValueError, match="not a JSON object"):
            check_config(nothing)


def test_a_run_whose_config_lacks_its_output_goes_on(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(altered(config, "output", ...)))
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    assert main(["train", f"--resume={folder}", "--quiet"]) == 0


RECORD: dict[str, Any] = {
    "iteration": 1,
    "rows": 8,
    "seconds": 1.5,
    "env_steps": [8, 7],
    "diverged": [False, True],
    "evaluation/episodic_return": [None, 1.0],
    "losses/loss": None,
}


def test_a_record_comes_back_as_numbers() -> None:
    record = check_record(RECORD, dict.fromkeys(PER_SEED, (2,)))
    assert record.keys() == RECORD.keys() and record["iteration"] == 1 and np.isnan(record["losses/loss"])
    np.testing.assert_array_equal(record["evaluation/episodic_return"], [np.nan, 1.0])
    assert record["diverged"].dtype == bool and record["env_steps"].dtype.kind == "i"


def test_log_keys_of_before_are_read() -> None:
    older = {"total_steps" if key == "rows" else key: value for key, value in RECORD.items()}
    assert check_record(older, {}).keys() == RECORD.keys()


@pytest.mark.parametrize("key", NEEDED_OF_RECORD)
def test_a_record_that_lacks_something_names_it(key: str) -> None:
    with pytest.raises(ValueError, match=f"^it lacks '{key}'$"):
        check_record(altered(RECORD, key, ...), {})


@pytest.mark.parametrize("value", [None, "x", [], {}, True, -1, 1.0, [1], 2**70, [[1], [2, 3]]])
def test_an_iteration_is_a_count(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^its 'iteration' is "):
        check_record(altered(RECORD, "iteration", value), {})


@pytest.mark.parametrize("value", [None, "x", {}, ["a", "b"], [{}, 1], [[1, 2], 3], 5, 2**70])
def test_values_per_seed_are_numbers(value: Any) -> None:
    for key in ("env_steps", "diverged", "evaluation/episodic_return"):
        with pytest.raises(ValueError, match=f"^its '{key}' "):
            check_record(altered(RECORD, key, value), dict.fromkeys(PER_SEED, (2,)))


def test_records_fit_the_seeds_and_each_other() -> None:
    with pytest.raises(ValueError, match=r"^its 'env_steps' has the shape \(2,\), but must have \(3,\)"):
        check_record(RECORD, dict.fromkeys(PER_SEED, (3,)))
    shapes: dict[str, Any] = {}
    check_record(RECORD, shapes)
    with pytest.raises(
        ValueError, match=r"^its 'losses/loss' has the shape \(2,\), but must have \(\) as in config.json or the lines before"
    ):
        check_record(altered(RECORD, "losses/loss", [1.0, 2.0]), shapes)


@pytest.mark.parametrize("line", ["5", "[]", "null", "{}", '{"iteration": 1}', "[" * 100_000])
def test_records_that_cannot_be_are_one_line(
    line: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "records.jsonl").write_text(line + "\n")
    for command in (
        ["plot", str(folder), "--out", str(tmp_path / "a.png")],
        ["eval", str(folder)],
        ["train", "--resume", str(folder)],
    ):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert "records.jsonl, line 1 is damaged" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spaces.observation", {}),
        ("spaces.observation.kind", 5),
        ("spaces.observation.low", ...),
        ("spaces.observation.shape", [-1]),
        ("spaces.action.n", -1),
        ("spaces.action", {"kind": "Dict", "spaces": [1]}),
    ],
)
def test_spaces_that_cannot_be_are_one_line(
    path: str, value: Any, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(altered(config, path, value)))
    assert main(["eval", str(folder)]) == 2 and "does not describe a space" in capsys.readouterr().err


def test_no_run_got_as_far_as_this_checkpoint_says(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "records.jsonl").unlink()
    step = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    body = json.loads((step / "manifest.json").read_bytes())
    (step / "manifest.json").write_bytes(render({**body, "step": 2**31}))
    step.rename(step.with_name(str(2**31)))
    assert main(["train", "--resume", str(folder), "--quiet"]) == 2
    assert "2147483648 is not a checkpoint of a run: its step exceeds 32 bits" in capsys.readouterr().err

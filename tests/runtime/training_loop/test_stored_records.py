"""Records and config of a stopped run that were damaged, cut or edited: refused, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.runtime.checkpoint.manifest import steps
from jaxrl.runtime.logs.files import read_records
from jaxrl.runtime.run import RunInterrupted, resume
from jaxrl.runtime.training_loop.on_chunk import Chunk
from tests.helpers import short_runs
from tests.helpers.agents import cartpole
from tests.helpers.processes.chaos import progress
from tests.helpers.short_runs import at, train
from tests.helpers.written_runs import make_older, write_run

pytestmark = pytest.mark.expensive(60)


@pytest.mark.slow
def test_a_damaged_log_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    with pytest.raises(RunInterrupted):
        train(cartpole("ppo"), tmp_path, on_chunk=at(4, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    records = tmp_path / "records.jsonl"
    lines = records.read_text().splitlines()
    records.write_text("\n".join(["\x00garbage", *lines[1:]]) + "\n")
    before = records.read_bytes()
    with pytest.raises(ValueError, match=r"records.jsonl, line 1 is damaged. Restore the file from a copy, or move it away"):
        train(cartpole("ppo"), tmp_path)
    assert records.read_bytes() == before
    records.rename(tmp_path / "records.old")
    rows = (tmp_path / "progress.csv").read_bytes()
    with pytest.warns(UserWarning) as told:
        _, history = train(cartpole("ppo"), tmp_path)
    assert history["iteration"].tolist() == [6, 8, 10, 12]
    said = [str(warning.message) for warning in told]
    assert {warning.filename for warning in told} == {short_runs.__file__}  # the line that called run
    assert "records.jsonl has no row up to the checkpoint: the rows from before stay in progress.before.csv" in said
    assert (tmp_path / "progress.before.csv").read_bytes() == rows
    train(cartpole("ppo"), tmp_path, 32 * 14)  # late records are now those of this run
    assert len([path for path in tmp_path.iterdir() if ".before" in path.name]) == len(said)


CUTS: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "end": (
        lambda lines: lines[:2],
        "was cut, or is an older copy: it ends at iteration 2, before the checkpoint of iteration 8",
    ),
    "middle": (lambda lines: [*lines[:1], *lines[2:]], "was altered: iteration 4 follows 0, in a run that writes a row every 2"),
    "order": (lambda lines: [lines[1], lines[0], *lines[2:]], "was altered: iteration 0 follows 2"),
    "seeds": (lambda lines: [line.replace("[", "[1,", 1) for line in lines], "its row of iteration 0 has other seeds"),
    "steps": (lambda lines: [line.replace('"rows": ', '"rows": 9') for line in lines], "or other steps"),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped at iteration 8 of 12, and saved there."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(RunInterrupted):
        train(cartpole("ppo"), folder, on_chunk=at(8, lambda: os.kill(os.getpid(), signal.SIGTERM)), checkpoint_every=0)
    return folder


@pytest.mark.parametrize("cut", CUTS)
def test_records_that_are_not_all_there_are_refused_and_left_as_they_are(cut: str, tmp_path: Path, stopped: Path) -> None:
    folder, (change, message) = shutil.copytree(stopped, tmp_path / "run"), CUTS[cut]
    records = folder / "records.jsonl"
    records.write_text("".join(change(records.read_text().splitlines(keepends=True))))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"records.jsonl .*{message}.* Put the whole file back from a copy, or move it away"):
        resume(folder, quiet=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_early_rows_and_the_best_policies_outlive_records_that_begin_late(tmp_path: Path, stopped: Path) -> None:
    """The quality of those policies is unknown, so later ones may be worse."""
    folder = shutil.copytree(stopped, tmp_path / "run")
    (old,) = steps(folder / "best")
    records, rows = folder / "records.jsonl", progress(folder)
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(line for line in lines if json.loads(line)["iteration"] > old))
    with pytest.warns(UserWarning) as told:
        resume(folder, quiet=True)
    said = " ".join(str(warning.message) for warning in told)
    assert "the rows from before stay in progress.before.csv" in said
    assert "lacks the evaluation of the policies in best/: they were moved to best.before/" in said
    (folder / "progress.csv").write_bytes((folder / "progress.before.csv").read_bytes())
    assert progress(folder) == rows and steps(folder / "best.before") == [old] and steps(folder / "best") != [old]


EDITS: dict[str, tuple[str, str, Any, str]] = {
    "num_epochs": ("agent", "settings", {"num_epochs": 3}, "agent.settings.num_epochs is 2 there and 3 here"),
    "seeds": ("run", "seeds", [3, 6], r"run.seeds is \[3, 5\] there and \[3, 6\] here"),
    "hyperparams": ("run", "hyperparams", {"learning_rate": 0.5}, r"run.hyperparams is null there and .* here"),
    "evaluations": ("run", "eval_episodes", 4, "run.eval_episodes is 3 there and 4 here"),
}


@pytest.mark.parametrize(("edit", "older"), [*((edit, False) for edit in EDITS), ("seeds", True)])
def test_a_config_that_was_edited_is_refused(edit: str, older: bool, tmp_path: Path, stopped: Path) -> None:
    """It disagrees with the checkpoint, whose run continues unchanged."""
    folder, (part, key, value, message) = shutil.copytree(stopped, tmp_path / "run"), EDITS[edit]
    if older:
        make_older(folder / "checkpoints" / "8")
    config = json.loads((folder / "config.json").read_text())
    config[part][key] = {**config[part][key], **value} if part == "agent" else value
    (folder / "config.json").write_text(json.dumps(config))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"checkpoint 8 was saved with other settings than config.json has now: {message}"):
        resume(folder, quiet=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("value", ["hello", None, [1.0, 2.0, 3.0], np.ones((2, 2))])
def test_what_on_chunk_adds_must_be_numbers(value: Any, tmp_path: Path) -> None:
    """The run can be resumed without it."""

    def add(chunk: Chunk) -> None:
        if chunk.iteration >= 6:
            chunk.record["charts/mine"] = value

    with pytest.raises(
        TypeError, match=r"(?s)on_chunk set record\['charts/mine'\] to .*: it must be a number, or an array with one"
    ):
        train(cartpole("ppo"), tmp_path, on_chunk=add)
    assert "mine" not in (tmp_path / "records.jsonl").read_text()


def test_records_after_the_checkpoint_are_cut_off_whatever_they_hold(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [[1.0], [2.0], [3.0]])
    lines = (folder / "records.jsonl").read_text().splitlines()
    lines[2] = lines[2].replace('"sps": 1.0', '"sps": "fast"')
    (folder / "records.jsonl").write_text("\n".join([*lines, ""]))
    assert [each["iteration"] for each in read_records(folder, 2)] == [1, 2]
    with pytest.raises(ValueError, match=r"line 3 is damaged"):
        read_records(folder, 3)


def test_a_new_metric_adds_a_column(tmp_path: Path) -> None:
    def add(chunk: Chunk) -> None:
        if chunk.iteration >= 6:
            chunk.record["charts/mine"] = np.array([1.5, np.nan])

    _, history = train(cartpole("ppo"), tmp_path, on_chunk=add)
    rows = progress(tmp_path)
    assert {row["charts/mine"] for row in rows[:6]} == {""} and rows[6]["charts/mine"] == "1.5"
    np.testing.assert_array_equal(history["charts/mine"][2:4], [[np.nan, np.nan], [1.5, np.nan]])

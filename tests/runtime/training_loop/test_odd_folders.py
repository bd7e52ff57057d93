"""Run folders that were changed from outside: messages on resuming, and behaviour without the missing files."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxrl
from jaxrl.runtime.checkpoint import saver as saving
from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointWarning, steps
from jaxrl.runtime.checkpoint.restore import read_info
from jaxrl.runtime.checkpoint.transfer import read_source
from jaxrl.runtime.logs.run_folder import RunFolder, read_config
from tests.helpers.agents import assert_bit_equal, cartpole
from tests.helpers.processes.chaos import progress
from tests.helpers.short_runs import at, train

SHORT, LONG = 32 * 8, 32 * 12


@pytest.fixture(autouse=True)
def save_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "SHARE", 1e9)


def flip(best: Path) -> None:
    (data,) = best.glob("*/manifest.json")
    data.write_bytes(data.read_bytes().replace(b"sha256", b"sha255", 1))


def replace_by_a_file(best: Path) -> None:
    shutil.rmtree(best)
    best.write_text("mine")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, shutil.rmtree, replace_by_a_file])
def test_lost_best_policies_are_told_and_replaced_by_the_next(damage: Callable[[Path], None], tmp_path: Path) -> None:
    train(cartpole("ppo"), tmp_path, SHORT)
    damage(tmp_path / "best")
    with pytest.warns(
        CheckpointWarning, match="the best policies are lost: .*/best.* Those of the next evaluation will replace them"
    ):
        _, history = train(cartpole("ppo"), tmp_path, LONG)
    assert history["iteration"][-1] == 12 and steps(tmp_path / "best") == [12] and read_info(tmp_path / "best").step == 12
    assert jaxrl.load_policy(tmp_path).step == 12
    if damage is replace_by_a_file:
        assert (tmp_path / "best.damaged").read_text() == "mine"


def test_a_file_in_the_place_of_best_does_not_end_a_run(tmp_path: Path) -> None:
    block = at(2, lambda: (tmp_path / "best").write_text("mine"))
    train(cartpole("ppo"), tmp_path, SHORT, on_chunk=block, checkpoint_every=0)
    assert steps(tmp_path / "best") and (tmp_path / "best.damaged").read_text() == "mine"


def flip_a_byte(step: Path) -> None:
    data = step / "default" / "manifest.ocdbt"
    data.write_bytes(data.read_bytes()[:-1] + bytes([data.read_bytes()[-1] ^ 1]))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_a_byte, replace_by_a_file])
def test_the_damaged_end_of_a_finished_run_is_trained_once_and_saved(damage: Callable[[Path], None], tmp_path: Path) -> None:
    train(cartpole("ppo"), tmp_path, SHORT, checkpoint_every=0)
    whole, _ = train(cartpole("ppo"), tmp_path, LONG, checkpoint_every=0)
    damage(tmp_path / "checkpoints" / "12")
    before, trained = progress(tmp_path), []
    with pytest.warns(CheckpointWarning) as told:
        repaired, _ = train(cartpole("ppo"), tmp_path, LONG, on_chunk=lambda chunk: trained.append(chunk.iteration))
    assert "was set aside as 12.damaged" in str(told[-1].message)
    assert trained == [10, 12] and progress(tmp_path) == before
    assert_bit_equal(repaired, whole)
    again, _ = train(cartpole("ppo"), tmp_path, LONG, on_chunk=lambda chunk: trained.append(chunk.iteration))
    assert trained == [10, 12]
    assert_bit_equal(again, whole)


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_told_and_not_taken(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    whole, _ = train(cartpole("ppo"), tmp_path / "whole", LONG)
    train(cartpole("ppo"), mine, SHORT)
    train(cartpole("ppo"), other, LONG, seeds=[8, 9])
    assert read_config(mine)["id"] != read_config(other)["id"]
    shutil.copytree(other / "checkpoints" / "12", mine / "checkpoints" / "12")
    with pytest.warns(CheckpointWarning, match="was written by another run. Using step 8 instead"):
        assert jaxrl.load_policy(mine, which="last").step == 8
    with pytest.warns(CheckpointWarning, match="was written by another run. Using step 8 instead"):
        assert "(last checkpoint, iteration 8)" in read_source(mine, "last").name
    with pytest.warns(CheckpointWarning) as told:
        states, _ = train(cartpole("ppo"), mine, LONG)
    said = " ".join(str(warning.message) for warning in told)
    assert "was written by another run. Using step 8 instead" in said and "was set aside as 12.damaged" in said
    assert_bit_equal(states, whole)
    assert progress(mine) == progress(tmp_path / "whole") and steps(mine / "checkpoints")[-1] == 12
    shutil.rmtree(mine / "checkpoints")
    shutil.copytree(other / "checkpoints", mine / "checkpoints")
    with pytest.raises(CheckpointError, match=r"no intact checkpoint: step 12 .* was written by another run"):
        train(cartpole("ppo"), mine, LONG)
    shutil.rmtree(mine / "best")
    shutil.copytree(other / "best", mine / "best")
    with pytest.raises(CheckpointError, match="was written by another run"):
        jaxrl.load_policy(mine)


@pytest.mark.slow
def test_a_run_from_before_there_were_ids_goes_on(tmp_path: Path) -> None:
    train(cartpole("ppo"), tmp_path, SHORT)
    config = read_config(tmp_path)
    del config["id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, history = train(cartpole("ppo"), tmp_path, LONG)
    assert history["iteration"][-1] == 12 and "id" not in read_config(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["learning_curve.png", "progress.csv", "tensorboard"])
def test_what_only_shows_the_records_is_left_out_where_it_cannot_be_written(name: str, tmp_path: Path) -> None:
    def block() -> None:
        path = tmp_path / "run" / name
        path.write_text("in the way") if name == "tensorboard" else path.mkdir()

    def at_the_start(*args: Any) -> Any:
        block()
        return original(*args)

    original = jaxrl.runtime.training_loop.run_files.RunFiles._open_sinks
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.warns(UserWarning, match=f"{name} cannot be written .*records.jsonl has the same data"),
    ):
        patch.setattr(jaxrl.runtime.training_loop.run_files.RunFiles, "_open_sinks", at_the_start)
        train(cartpole("ppo"), tmp_path / "run", SHORT, tensorboard=True)
    assert steps(tmp_path / "run" / "checkpoints")[-1] == 8
    assert len((tmp_path / "run" / "records.jsonl").read_text().splitlines()) == 5


@pytest.mark.slow
@pytest.mark.parametrize("iteration", [2, 6, 8])
def test_a_folder_that_is_deleted_meanwhile_is_not_made_again_in_parts(iteration: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def delete() -> None:
        while folder.exists():  # a checkpoint may be under way in it
            shutil.rmtree(folder, ignore_errors=True)

    with pytest.raises(FileNotFoundError, match="was deleted, moved or replaced during the run: the run ends"):
        train(cartpole("ppo"), folder, LONG, on_chunk=at(iteration, delete))
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["__init__", "finish"])
@pytest.mark.parametrize("every", [0, 1e-6])
def test_a_run_that_took_a_folders_place_is_not_written_to(
    moment: str, every: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by a save in progress when it appears."""
    folder, told = tmp_path / "run", []

    def replace(*args: Any, **settings: Any) -> Any:
        if not told:
            told.append(moment)
            folder.rename(tmp_path / "moved")
            theirs = folder / "checkpoints" / "unfinished" / "2.orbax-checkpoint-tmp"
            theirs.mkdir(parents=True)
            for path in (folder / ".lock", folder / "config.json", theirs / "data"):
                path.write_text("theirs")
        return original(*args, **settings)

    original = getattr(saving.PendingSave, moment)
    monkeypatch.setattr(saving.PendingSave, moment, replace)
    with pytest.raises(FileNotFoundError, match="was deleted, moved or replaced during the run: the run ends"):
        train(cartpole("ppo"), folder, SHORT, checkpoint_every=every, eval_every=0)
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    held = (".lock", "config.json", "checkpoints/unfinished/2.orbax-checkpoint-tmp/data")
    assert told and files == dict.fromkeys(held, "theirs")


@pytest.mark.slow
def test_the_lock_of_a_run_that_took_a_folders_place_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def replace() -> None:
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        for name in (".lock", "config.json"):
            (folder / name).touch()

    with pytest.raises(FileNotFoundError, match="If the folder was moved, the same call with its new name resumes the run"):
        train(cartpole("ppo"), folder, LONG, on_chunk=at(6, replace))
    assert (folder / ".lock").exists() and (folder / "config.json").exists()
    _, history = train(cartpole("ppo"), tmp_path / "moved", LONG)
    assert history["iteration"][-1] == 12


def test_what_a_kill_leaves_before_the_first_file_locks_no_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json.tmp").symlink_to(tmp_path.with_name("elsewhere"))
    (tmp_path / ".lock").touch()
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config.json"):
        jaxrl.resume(tmp_path)
    folder = RunFolder(tmp_path)
    folder.write_config(jax.devices()[:1], agent={}, run={"seeds": [1]})
    folder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"] and read_config(tmp_path)["id"] == folder.id
    assert not (tmp_path / "config.json").is_symlink() and not tmp_path.with_name("elsewhere").exists()
    (tmp_path / "config.json").rename(tmp_path / "config.json.tmp")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="is not empty and holds no run"):
        RunFolder(tmp_path)


@pytest.mark.parametrize("name", ["a[b]", "a\\b"])
def test_a_run_whose_checkpoints_would_be_lost_is_refused_before_it_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    for out in ("run", tmp_path / name / "run"):
        with pytest.raises(ValueError, match=r"out='.*run'.* cannot hold checkpoints: .*Rename that folder") as caught:
            train(cartpole("ppo"), out)
        assert repr(str(tmp_path / name / "run")) in str(caught.value)
    assert not list((tmp_path / name).iterdir())


def test_a_url_is_refused_before_anything_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match="out='gs://bucket/run' is a URL, but results can only be written to folders of this machine"
    ):
        train(cartpole("ppo"), "gs://bucket/run")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_run_may_be_resumed_with_more_patience(tmp_path: Path) -> None:
    """As the message says that ends a run whose workers were lost too often."""
    with contextlib.closing(RunFolder(tmp_path)) as folder:
        folder.config = {"agent": {}, "run": {"scheme": {"num_workers": 2, "max_restarts": 10, "timeout": 60.0, "pin": False}}}
        folder.check_same({}, {"scheme": {"num_workers": 2, "max_restarts": 20, "timeout": 120.0, "pin": True}})
        with pytest.raises(FileExistsError, match=r"run\.scheme\.num_workers is 2 there and 3 here"):
            folder.check_same({}, {"scheme": {"num_workers": 3}})
        with pytest.raises(FileExistsError, match=r"run\.scheme is .* there and null here"):
            folder.check_same({}, {"scheme": None})

"""Saving next to files of other owners: they stay unchanged to the byte, even if they look like checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl.runtime.checkpoint import manifest
from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointWarning
from jaxrl.runtime.checkpoint.ownership import OWNER, Workspace, own_steps
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.runtime.logs.run_folder import RunFolder
from tests.helpers.agents import cartpole
from tests.helpers.short_runs import train

STATE = {"x": jnp.arange(3)}
RUN = "a-run"


def snapshot(folder: Path) -> dict[str, Any]:
    """Return all paths below a folder with a link's target, a file's contents, or None for a folder."""
    return {
        path.relative_to(folder).as_posix(): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def with_a_manifest(path: Path, text: bytes = b"{}") -> None:
    path.mkdir(parents=True)
    (path / "manifest.json").write_bytes(text)
    (path / "photo").write_bytes(b"mine")


def without_a_manifest(path: Path) -> None:
    """Convert it to a checkpoint of another program that uses orbax."""
    saved_by_us(path)
    (path / "manifest.json").unlink()


def saved_by_us(path: Path, run: str | None = RUN, step: int | None = None) -> None:
    other = path.parent.parent / "other"
    shutil.move(save(other, STATE, int(path.name) if step is None else step, run=run), path)
    shutil.rmtree(other)


def with_a_file_of_mine(path: Path) -> None:
    saved_by_us(path)
    (path / "default" / "notes.txt").write_text("mine")


def link_to_one_of_ours(path: Path) -> None:
    saved_by_us(path)
    path.rename(elsewhere := path.parent.parent / f"elsewhere-{path.name}")
    path.symlink_to(elsewhere)


STRANGERS: dict[str, Callable[[Path], None]] = {
    "any manifest": with_a_manifest,
    "a sealed manifest": lambda path: with_a_manifest(path, manifest.render({"step": int(path.name), "run": RUN})),
    "no manifest": without_a_manifest,
    "another step": lambda path: saved_by_us(path, step=int(path.name) + 50),
    "another run": lambda path: saved_by_us(path, "another"),
    "no run": lambda path: saved_by_us(path, None),
    "a file of mine": with_a_file_of_mine,
    "a link": link_to_one_of_ours,
    "an empty folder": lambda path: path.mkdir(),
    "a file": lambda path: path.write_text("mine") and None,
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_old_steps_that_are_not_of_this_run_are_never_deleted(stranger: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in ("1", "3"):
        STRANGERS[stranger](folder / number)
    before = snapshot(tmp_path)
    for step in (4, 5, 6):
        save(folder, STATE, step, keep=1, run=RUN)
    assert own_steps(folder, RUN) == [6]
    shutil.rmtree(folder / "6")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("stranger", STRANGERS)
def test_what_stands_in_the_place_of_a_step_is_neither_moved_nor_replaced(stranger: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    STRANGERS[stranger](folder / "5")
    before = snapshot(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"step=5 cannot be saved in .*(Move it away, or save to another|steps must increase)"
    ):
        save(folder, STATE, 5, run=RUN)
    assert snapshot(tmp_path) == before
    (folder / "5").rename(folder / "five")
    save(folder, STATE, 5, run=RUN)


@pytest.mark.parametrize("stranger", ["any manifest", "no manifest", "an empty folder", "a file"])
def test_numbers_above_a_step_may_be_anybodys(stranger: str, tmp_path: Path) -> None:
    """An earlier ``save(".")`` renamed a run whose folder is named by a number."""
    STRANGERS[stranger](tmp_path / "2024")
    before = snapshot(tmp_path)
    save(tmp_path, STATE, 5)
    shutil.rmtree(tmp_path / "5")
    assert snapshot(tmp_path) == before


def test_the_folder_of_unfinished_saves_may_hold_other_things(tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    for name in ("chapters", "save-0123456789ab", "save-0123456789ac", "save-1", "save-0123456789ad", "7"):
        (unfinished / name).mkdir(parents=True)
        (unfinished / name / "text").write_text("mine")
    (unfinished / "save-0123456789ac" / OWNER).write_bytes(manifest.render({"run": "another"}))
    (unfinished / "save-0123456789ad" / OWNER).write_text('{"run": null}')
    (unfinished / "save-1" / OWNER).write_bytes(manifest.render({"run": None}))
    before = snapshot(tmp_path)
    Workspace(tmp_path, None)  # of a killed save
    for name in ("save-aaaaaaaaaaaa", "save-bbbbbbbbbbbb"):  # of two that were killed earlier
        (unfinished / name).mkdir()
    (unfinished / "save-bbbbbbbbbbbb" / f"{OWNER}.tmp").write_text("{")
    save(tmp_path, STATE, 8)
    shutil.rmtree(tmp_path / "8")
    assert snapshot(tmp_path) == before


def test_an_empty_folder_for_unfinished_saves_stays_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "unfinished").mkdir()
    save(tmp_path, STATE, 1)
    assert sorted(os.listdir(tmp_path)) == ["1", "unfinished"]


def test_a_failed_save_deletes_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unfinished" / "chapters").mkdir(parents=True)
    with_a_manifest(tmp_path / "1")
    before = snapshot(tmp_path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(manifest, "write", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        save(tmp_path, STATE, 2, keep=1)
    assert snapshot(tmp_path) == before


def test_what_was_set_aside_before_is_never_deleted(tmp_path: Path) -> None:
    for name in ("2.damaged", "2.damaged-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text(name)
    before = snapshot(tmp_path)
    save(tmp_path, STATE, 2)
    (tmp_path / "2" / "default" / "_METADATA").write_bytes(b"")
    with pytest.warns(CheckpointWarning, match=r"set aside as 2\.damaged-3"):
        save(tmp_path, STATE, 2)
    restore(tmp_path, STATE, step=2)
    for name in ("2", "2.damaged-3"):
        shutil.rmtree(tmp_path / name)
    assert snapshot(tmp_path) == before


@pytest.mark.slow
def test_a_run_renames_what_is_in_its_own_way_and_deletes_none_of_it(tmp_path: Path) -> None:
    """The folder belongs to the run: a step with a damaged manifest must not end it."""
    train(cartpole("ppo"), tmp_path, 32 * 8, checkpoint_every=0)
    ours = tmp_path / "checkpoints"
    with_a_manifest(ours / "12")
    with_a_manifest(ours / "1")
    with pytest.warns(CheckpointWarning):
        train(cartpole("ppo"), tmp_path, 32 * 12, checkpoint_every=0, keep_checkpoints=1)
    assert sorted(os.listdir(ours)) == ["1", "12", "12.damaged"]
    assert all((ours / name / "photo").read_bytes() == b"mine" for name in ("1", "12.damaged"))


@pytest.mark.parametrize(
    ("place", "kind"), [("checkpoints", "link"), ("best", "link"), ("checkpoints", "pipe"), ("best", "file")]
)
def test_a_run_whose_unfinished_saves_would_go_elsewhere_is_refused_before_it_trains(
    place: str, kind: str, trained: Path, tmp_path: Path
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(trained, run)
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("mine")
    unfinished = run / place / "unfinished"
    {"link": lambda: unfinished.symlink_to(elsewhere), "file": unfinished.touch, "pipe": lambda: os.mkfifo(unfinished)}[kind]()
    with pytest.raises(FileExistsError, match=f"unfinished in it is {'a link' if kind == 'link' else 'not a folder'}"):
        jaxrl.resume(run, total_steps=128, quiet=True, on_chunk=lambda chunk: pytest.fail())
    with pytest.raises(FileExistsError, match=f"unfinished in it is {'a link' if kind == 'link' else 'not a folder'}"):
        save(run / place, STATE, 99)
    assert snapshot(elsewhere) == {"precious": b"mine"}


def test_a_link_to_unfinished_saves_is_not_looked_into(tmp_path: Path) -> None:
    save(tmp_path / "saves", STATE, 1)
    (tmp_path / "elsewhere" / "save-1" / "9").mkdir(parents=True)
    (tmp_path / "saves" / "unfinished").symlink_to(tmp_path / "elsewhere")
    assert restore(tmp_path / "saves", STATE)[1].step == 1  # an incomplete step 9 would raise a warning


def test_no_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_a_manifest(tmp_path / "5")
    before = snapshot(tmp_path)
    for call in (
        lambda: save("", STATE, 5),
        lambda: restore("", STATE),
        lambda: jaxrl.run(cartpole("ppo"), 32, out="", quiet=True),
        lambda: jaxrl.load_policy(""),
    ):
        with pytest.raises(ValueError, match="'' is not a path of a folder or file"):
            call()
    assert snapshot(tmp_path) == before


def test_a_lock_of_another_program_stays(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("of another program")
    RunFolder(tmp_path).close()
    assert (tmp_path / ".lock").read_text() == "of another program"


def test_a_step_of_another_run_is_not_read(tmp_path: Path) -> None:
    save(tmp_path, STATE, 5, run=RUN)
    saved_by_us(tmp_path / "9", "another")
    with pytest.warns(CheckpointWarning, match=r"was written by another run\. Using step 5 instead"):
        assert restore(tmp_path, STATE, run=RUN)[1].step == 5
    with pytest.raises(CheckpointError, match="was written by another run"):
        restore(tmp_path, STATE, step=9, run=RUN)

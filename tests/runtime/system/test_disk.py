"""Files in folders that may belong to another user: links are not followed, and only regular files are read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl.runtime.checkpoint import manifest
from jaxrl.runtime.checkpoint.manifest import CheckpointError
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.logs.files import read_records
from jaxrl.runtime.logs.run_folder import RunFolder, read_config
from jaxrl.runtime.plots.style import new_figure, save
from jaxrl.runtime.system.disk import parse_json, replacing, write_atomically


def write_manifest(path: Path) -> None:
    (path.parent / manifest.ARRAYS).parent.mkdir()
    (path.parent / manifest.ARRAYS).touch()
    manifest.write(path.parent, 3, None, [])


def write_figure(path: Path) -> None:
    save(new_figure(1, 1), path)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda path: write_atomically(path, "text"), "config.json"),
        (write_manifest, "manifest.json"),
        (write_figure, "learning_curve.png"),
    ],
)
@pytest.mark.parametrize("leads_to", ["mine", "nowhere"])
def test_what_is_left_where_a_file_is_written_makes_way_and_is_not_followed(
    write: Callable[[Path], None], name: str, leads_to: str, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / f"{name}.tmp").symlink_to(tmp_path / leads_to)
    write(folder / name)
    assert (tmp_path / "mine").read_text() == "precious" and not (tmp_path / "nowhere").exists()
    assert (folder / name).stat().st_size and not list(folder.glob("*.tmp"))


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "results.csv").symlink_to(tmp_path / "mine")
    write_atomically(tmp_path / "results.csv", "text")
    assert (tmp_path / "mine").read_text() == "precious" and (tmp_path / "results.csv").read_text() == "text"


def test_what_breaks_off_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_the_lock_of_a_run_is_no_link(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="cannot be written to"):
        RunFolder(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["config.json", "records.jsonl"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_one_line(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for target in ("/dev/zero", tmp_path / "pipe"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(target)
        with pytest.raises((OSError, ValueError), match="not a regular file"):
            read_config(tmp_path) if name == "config.json" else read_records(tmp_path, 1)


def forge(step: Path, **changes: Any) -> None:
    """Write a changed manifest with a valid digest."""
    body = json.loads((step / manifest.NAME).read_bytes())
    (step / manifest.NAME).write_bytes(manifest.render({**body, **changes}))


NOTHING = {"size": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
LEAF = {"path": "", "shape": [3], "dtype": "float32"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": {"/dev/zero": NOTHING}}, "lists '/dev/zero', which is outside its folder"),
        ({"files": {"../../x": NOTHING}}, "lists '../../x', which is outside its folder"),
        ({"files": {"pipe": NOTHING}}, "the file pipe cannot be read .it is not a regular file"),
        ({"files": {"zero": NOTHING}}, "the file zero cannot be read .it is not a regular file"),
        ({"files": {"link\0": NOTHING}}, "which is outside its folder"),
        ({"files": [1]}, "the file manifest.json was altered: it cannot be parsed"),
        ({"files": {"a": {}}}, "the file manifest.json was altered: it cannot be parsed"),
        ({"versions": {}}, "the file manifest.json was altered: it cannot be parsed"),
        ({"structure": [{**LEAF, "shape": [-1]}]}, "the file manifest.json was altered: it cannot be parsed"),
        ({"structure": [{**LEAF, "shape": None}]}, "the file manifest.json was altered: it cannot be parsed"),
        ({"structure": [{"path": "x"}]}, "the file manifest.json was altered: it cannot be parsed"),
    ],
)
def test_a_forged_manifest_is_one_line_and_nothing_outside_is_read(
    changes: dict[str, Any], message: str, saved: Path, tmp_path: Path
) -> None:
    step = tmp_path / "checkpoints" / "1"
    shutil.copytree(saved / "1", step)
    os.mkfifo(step / "pipe")
    (step / "zero").symlink_to("/dev/zero")
    (tmp_path / "x").touch()
    forge(step, **changes)
    with pytest.raises(CheckpointError, match=message):
        jaxrl.restore(step.parent, jnp.zeros(3))


def test_large_files_may_be_kept_elsewhere(saved: Path, tmp_path: Path) -> None:
    """As git-annex and similar tools do."""
    step = tmp_path / "checkpoints" / "1"
    for path in sorted((saved / "1").rglob("*")):
        there = step / path.relative_to(saved / "1")
        there.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            there.symlink_to(path)
    assert jaxrl.restore(step.parent, jnp.zeros(3))[0].tolist() == [1, 1, 1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    jaxrl.save(folder, jnp.ones(3), 1)
    return folder


@pytest.mark.parametrize("brackets", ["[]", ('{"a":', "}")])
def test_data_without_a_bottom_is_refused(brackets: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json(brackets[0] * 200_000 + "1" + brackets[1] * 200_000)


@pytest.mark.parametrize("where", ["~nobody-of-this-name/run", "~nobody-of-this-name"])
def test_a_home_that_is_not_known_is_one_line(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (
        ["train", "--resume", where],
        ["plot", where],
        ["eval", where],
        ["record", where],
        ["plot", "x", "--out", f"{where}.png"],
    ):
        assert main(args) == 2 and "cannot be expanded: " in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=r"cannot be expanded: .* Give the full path"):
        RunFolder(where)


def test_a_working_folder_that_is_gone_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    for args in (["train", "ppo", "--env", "CartPole-v1"], ["envs"], ["sweep", "grid.toml"], ["train", "--resume", "/run"]):
        assert main(args) == 2
        assert capsys.readouterr().err == "jaxrl: the current folder was deleted: change to an existing one (cd)\n"
    with pytest.raises(FileNotFoundError, match="was deleted: change to an existing one"):
        RunFolder("run")
    with contextlib.closing(RunFolder(tmp_path / "run")) as folder:  # a run whose folder has a complete path continues
        assert folder.shown == tmp_path / "run"

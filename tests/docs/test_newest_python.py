"""The second interpreter of `.ci/run`, and its part of the tests."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import IN_EACH_PART, in_part, part, pytest_collection_modifyitems
from tests.helpers.newest_python import newest_python


def fake(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_the_newest_that_starts_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell, pyenv = tmp_path / "bin", tmp_path / "pyenv"
    monkeypatch.setenv("PATH", f"{tmp_path / 'not_there'}:{shell}")
    assert newest_python() is None
    fake(shell, "python3.11", "echo 3 11 7")
    fake(shell, "python3.10", "echo 3 10 13")
    assert newest_python(beside=(3, 11)) is None
    older = fake(shell, "python3.12", "echo 3 12 1")
    assert newest_python(beside=(3, 11)) == str(older)
    fake(shell, "python3.14", "exit 127")  # pyenv's shim of a version that is not selected
    fake(shell, "python3.15", "echo")  # not a release
    fake(shell, "python3", "echo 3 99 0")  # another name of one of these
    assert newest_python(beside=(3, 11)) == str(older)
    fake(shell, "pyenv", f"echo {pyenv}")
    fake(pyenv / "versions" / "3.9.18" / "bin", "python", "echo 3 9 18")
    fake(pyenv / "versions" / "3.13.2" / "bin", "python", "echo 3 13 2")
    newer = fake(pyenv / "versions" / "3.13.10" / "bin", "python", "echo 3 13 10")
    assert newest_python(beside=(3, 11)) == str(newer)
    assert newest_python(beside=(3, 13)) == str(older)


@pytest.mark.slow
def test_this_python_is_not_beside_itself() -> None:
    found = newest_python()
    assert found is None or f"python{sys.version_info[0]}.{sys.version_info[1]}" != Path(found).resolve().name


@pytest.mark.parametrize("count", [4, 8])
def test_the_parts_together_are_all_tests(count: int) -> None:
    groups = [*IN_EACH_PART, *(f"test_{i}" for i in range(11)), "ppo", "ppo"]
    parts = [in_part(i, count, groups) for i in range(count)]
    assert set().union(*parts) == set(groups)
    others = [group for part in parts for group in part if group not in IN_EACH_PART]
    assert sorted(others) == sorted({*groups} - {*IN_EACH_PART})  # each once
    assert all(set(IN_EACH_PART) <= set(part) for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["4/4", "-1/4", "3", "1/x", ""])
def test_a_part_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be NUMBER/COUNT"):
        part(text)


def test_the_option_chooses_a_part() -> None:
    class Item:
        def __init__(self, name: str) -> None:
            self.path, self.marks = Path(f"{name}.py"), list[Any]()

        def add_marker(self, mark: Any) -> None:
            self.marks.append(mark.mark)

        def get_closest_marker(self, name: str) -> Any:
            return None

        def iter_markers(self, name: str) -> Any:
            return (mark for mark in self.marks if mark.name == name)

    names, left_out = ["test_a", "test_a", "test_b", "test_packed_scan", "test_z"], list[Any]()
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    items: Any = [Item(name) for name in names]
    config: Any = SimpleNamespace(getoption=lambda name: {"part": (0, 4)}[name], hook=hook)
    pytest_collection_modifyitems(config, items)
    assert [item.path.stem for item in items] == ["test_a", "test_a", "test_packed_scan"]
    assert [item.path.stem for item in left_out] == ["test_b", "test_z"]

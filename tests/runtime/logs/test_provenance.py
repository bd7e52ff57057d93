"""The commit that a run records."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jaxrl.runtime.logs.provenance import commit


def test_the_commit_says_whether_files_differ_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
    (tmp_path / "code.py").write_text("x = 1")
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert commit() == head
    (tmp_path / "code.py").write_text("x = 2")
    assert commit() == f"{head}+changes"

"""The folder in which CI keeps compiled programs."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.helpers.kept_cache import DAYS, kept_cache


def test_old_programs_are_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = kept_cache(current_time=0.0)
    assert folder.is_relative_to(tmp_path) and version("jaxlib") in folder.name
    for name, age in {"old": DAYS * 86_400 + 1, "new": DAYS * 86_400 - 1}.items():
        (folder / name).touch()
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    assert kept_cache(current_time=1e9) == folder and [entry.name for entry in folder.iterdir()] == ["new"]

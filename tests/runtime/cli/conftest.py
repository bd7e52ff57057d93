"""Fixture of tests that call the command line in this process."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the path, to which the command line appends the current folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])

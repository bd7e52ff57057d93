"""Fixture of tests that call the command line in this process."""

from __future__ import annotations

import sys

import pytest

from jaxrl.runtime.system import devices


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what the command line changes: it appends the current folder to the path, and enables the cache of programs."""
    monkeypatch.setenv(devices.CACHE_VARIABLE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])

"""Findings of ``jaxrl doctor``, and pip's commands for this Python."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from typing import Literal, NamedTuple

PACKAGES, MACHINE, SMOKE, CLUSTER = "packages", "machine", "smoke test", "Ray cluster"


class Finding(NamedTuple):
    """Result of one check."""

    group: str
    check: str
    level: Literal["ok", "absent", "note", "problem"]
    """Only problems change the exit code. Note: could be improved, or waits for a fix. Absent: optional and not installed."""
    found: str
    breaks: str = ""
    """For a problem: what does not work."""
    fix: str = ""
    """For a problem: the command that fixes it."""

    @property
    def line(self) -> str:
        """A problem as one line, with its consequences and the fix."""
        return f"{self.check}: {self.found}. Breaks {self.breaks}. Fix: {self.fix}"


def problems(found: Iterable[Finding]) -> set[str]:
    """Return the names of the checks that found problems."""
    return {finding.check for finding in found if finding.level == "problem"}


def pip(command: str, requirement: str = "") -> str:
    """Return a command of pip for this Python interpreter, or of uv if that has no pip."""
    found = shutil.which("python")
    python = "python" if found and os.path.abspath(found) == os.path.abspath(sys.executable) else shlex.quote(sys.executable)
    what = f' "{requirement}"' if requirement else ""
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip {command} --python {python}{what}"
    return f"{python} -m pip {command}{what}"

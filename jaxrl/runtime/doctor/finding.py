"""Findings of ``jaxrl doctor``, and the command that installs a package."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from typing import Literal, NamedTuple

PACKAGES, MACHINE, SMOKE = "packages", "machine", "smoke test"


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


def pip_install(requirement: str, *, again: bool = False) -> str:
    """Return the command that installs a package for this Python interpreter.

    Args:
      again: reinstall the package.
    """
    found = shutil.which("python")
    python = "python" if found and os.path.abspath(found) == os.path.abspath(sys.executable) else shlex.quote(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None
    if not has_pip and shutil.which("uv"):
        return f'uv pip install --python {python}{" --reinstall --no-deps" if again else ""} "{requirement}"'
    pip = f'{python} -m pip install{" --force-reinstall --no-deps" if again else ""} "{requirement}"'
    return pip if has_pip else f"{python} -m ensurepip && {pip}"


def shortened(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"

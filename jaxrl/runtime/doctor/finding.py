"""What was looked at, and what came of it; and the command that installs a package."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from typing import Literal, NamedTuple

PACKAGES, MACHINE, SMOKE = "packages", "machine", "smoke test"


class Finding(NamedTuple):
    """One thing that was looked at."""

    group: str
    check: str
    level: Literal["ok", "absent", "note", "problem"]
    """Problems count. A note: something could be better, or waits for a problem to be mended. Absent: optional, not installed."""
    found: str
    breaks: str = ""
    """Of a problem: what does not work."""
    fix: str = ""
    """Of a problem: the command that mends it."""

    @property
    def line(self) -> str:
        """A problem as one line: what is wrong, what it breaks, what mends it."""
        return f"{self.check}: {self.found}. Breaks {self.breaks}. Fix: {self.fix}"


def pip_install(requirement: str, *, again: bool = False) -> str:
    """The command that installs into this very Python; ``again``: although it is there."""
    found = shutil.which("python")
    python = "python" if found and os.path.abspath(found) == os.path.abspath(sys.executable) else shlex.quote(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None
    if not has_pip and shutil.which("uv"):
        return f'uv pip install --python {python}{" --reinstall --no-deps" if again else ""} "{requirement}"'
    pip = f'{python} -m pip install{" --force-reinstall --no-deps" if again else ""} "{requirement}"'
    return pip if has_pip else f"{python} -m ensurepip && {pip}"


def shortened(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"

"""The newest Python of this machine other than the running one. With it pip can install the newest JAX.

``python -m tests.helpers.newest_python`` prints its path, or nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST = (3, 11)
"""Oldest version that jaxrl supports."""


def newest_python(beside: tuple[int, ...] = sys.version_info[:2]) -> str | None:
    """Return the interpreter, or None if no version that jaxrl supports exists except ``beside`` (major, minor)."""
    found = {version[:2]: path for path in _candidates() if (version := _version(path)) >= OLDEST and version[:2] != beside}
    return found[max(found)] if found else None


def _candidates() -> Iterator[str]:
    """Yield pyenv's interpreters, oldest first, then those on the shell's path, which replace equal versions."""
    try:
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    except OSError:
        root = ""
    numbered = [path for path in Path(root, "versions").glob("*") if root and re.fullmatch(r"3\.\d+\.\d+", path.name)]
    for path in sorted(numbered, key=lambda path: [*map(int, path.name.split("."))]):
        yield str(path / "bin" / "python")
    for folder in os.get_exec_path():
        for name in sorted(os.listdir(folder) if os.path.isdir(folder) else []):
            if re.fullmatch(r"python3\.\d+", name) and (path := shutil.which(name, path=folder)):
                yield path


def _version(path: str) -> tuple[int, ...]:
    """Return the version of a final release with venv and ensurepip, else ().

    () also if it does not start, such as pyenv's shim of a version that is not selected.
    """
    ask = "import sys, venv, ensurepip; print(*sys.version_info[:3]) if sys.version_info.releaselevel == 'final' else None"
    try:
        said = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False, timeout=60).stdout
    except OSError:
        return ()
    return tuple(map(int, said.split()))


if __name__ == "__main__":
    print(newest_python() or "")

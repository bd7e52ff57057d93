"""The folder in which CI keeps compiled programs between runs.

``python -m tests.helpers.kept_cache`` prints the folder and deletes old entries.
JAX keys an entry by program, flags and versions. The folder's name has the rest: jaxlib and processor.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path

from jaxrl.runtime.system.devices import processor

DAYS = 14
"""Largest age of an entry. Programs change with the code, and old entries are not deleted otherwise."""


def kept_cache(current_time: float) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "jaxrl" / "tests" / f"jaxlib-{version('jaxlib')}-{processor()}"
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if entry.is_file() and current_time - entry.stat().st_mtime > DAYS * 86_400:
            entry.unlink(missing_ok=True)
    return folder


if __name__ == "__main__":
    print(kept_cache(time.time()))

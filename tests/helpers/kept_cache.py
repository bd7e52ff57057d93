"""Where CI keeps compiled programs between its runs.

``python -m tests.helpers.kept_cache`` prints the folder, and clears it of old ones.
JAX keys an entry by program, flags and versions; what it leaves out is in the folder's name.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path

from jaxrl.runtime.system.devices import processor

DAYS = 14
"""An entry's age at the most: programs change with the code, and nothing else would take the old ones away."""


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

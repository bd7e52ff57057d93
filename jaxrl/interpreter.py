"""Other Python processes that find modules where this one does, and nowhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import jaxrl

BOOT = """
import json, runpy, sys
sys.path[:] = json.loads(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def python_command(module: str, *args: str, folders: Iterable[str] = ()) -> list[str]:
    """What runs a module as ``python -m`` does, which would look for modules in the current folder first.

    Args:
      folders: where it looks for modules last.
    """
    root = str(Path(jaxrl.__file__).resolve().parents[1])
    path = [*dict.fromkeys([*sys.path, root, *folders])]
    return [sys.executable, "-P", "-c", BOOT, json.dumps(path), module, *args]

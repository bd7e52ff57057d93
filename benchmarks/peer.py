"""Rejax in an environment of its own: it needs an old gymnax, and brings tensorflow-probability. Standard library only."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.protocol import ROOT

FOLDER = ROOT / ".venv-rejax"
PYTHON = FOLDER / "bin" / "python"
MODULES = ("rejax", "gymnax")


class PeerError(RuntimeError):
    """The peer's environment could not be made."""


def requirements(gpu: bool) -> list[str]:
    """Rejax, the gymnax it was written for, what that imports without saying so, and the jax that jaxrl runs on here."""
    return ["rejax==0.1.3", "gymnax==0.0.9", "six", f"jax{'[cuda12]' if gpu else ''}=={version('jax')}"]


def install(*, gpu: bool = False) -> Path:
    """The peer's interpreter; builds its environment first if it is missing or holds something else.

    Raises:
      PeerError: pip failed, or what it installed cannot be imported; the message ends with what was printed.
    """
    stamp = FOLDER / "installed.txt"
    wanted = "\n".join([sys.version, *requirements(gpu)])
    if stamp.is_file() and stamp.read_text() == wanted:
        return PYTHON
    print(f"Installing {', '.join(requirements(gpu))} into {FOLDER.name}: once; minutes.", file=sys.stderr, flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(FOLDER))
    _run(str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements(gpu))
    _run(str(PYTHON), "-c", "\n".join(f"import {module}" for module in MODULES))
    stamp.write_text(wanted)
    return PYTHON


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise PeerError(f"the peer's environment failed at {' '.join(command[1:])}, and --without-peer leaves it out:\n{tail}")

"""The command line in a separate process, for tests that interrupt and read it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT
from tests.helpers.processes.children import soon

ENV = "tests.helpers.probes:action_choice"
SMALL = ("--num-envs", "2", "--rollout-length", "4", "--num-epochs", "1", "--num-minibatches", "1")


def start(*args: str, **settings: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    options = {"env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.Popen([sys.executable, *args], **options)


def wait_for(path: Path, process: subprocess.Popen[Any]) -> None:
    assert soon(lambda: path.exists() or process.poll() is not None, 120) and process.poll() is None

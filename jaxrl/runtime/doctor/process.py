"""Probes run in processes of their own: whatever hangs, aborts or crashes there is an answer here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any, NamedTuple

from jaxrl.interpreter import python_command

NO_REASON = ("File ", "Fatal Python error", "Current thread", "Extension modules", "Thread 0x", "<no Python frame>")
"""How lines of a crash report begin that do not say why."""


class Answer(NamedTuple):
    """What a probe reported before it ended."""

    results: list[dict[str, Any]]
    end: str | None
    """How it ended, if not as it should."""

    @property
    def facts(self) -> dict[str, Any]:
        """All results as one."""
        return {key: value for result in self.results for key, value in result.items()}


def ask(probe: str, *args: str, timeout: float) -> Answer:
    """Run a probe of ``doctor.probe`` in a process that finds modules where this one does, for ``timeout`` seconds at most."""
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ  # a training may hold most of the GPU's memory
    command = python_command("jaxrl.runtime.doctor.probe", probe, *args)
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, env=environment, check=False)
    except subprocess.TimeoutExpired as error:
        return Answer(_read(error.stdout), f"no end after {timeout:g} s")
    return Answer(_read(done.stdout), _how_it_ended(done.returncode, done.stderr.decode(errors="replace")))


def _read(output: bytes | None) -> list[dict[str, Any]]:
    lines = (output or b"").decode(errors="replace").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _how_it_ended(code: int, errors: str) -> str | None:
    if code == 0:
        return None
    said = [" ".join(line.split()) for line in errors.splitlines() if line.strip()]
    if code > 0:
        return said[-1] if said else f"exit code {code}"
    reasons = [line for line in said if not line.startswith(NO_REASON)]
    return " ".join([f"killed by {signal.Signals(-code).name}", *(f"({line})" for line in reasons[-1:])])

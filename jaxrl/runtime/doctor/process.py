"""Running of probes in separate processes: a hang, abort or crash there becomes an answer here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any, NamedTuple

from jaxrl.interpreter import python_command

NO_REASON = ("File ", "Fatal Python error", "Current thread", "Extension modules", "Thread 0x", "<no Python frame>")
"""Prefixes of lines of a crash report that do not name the cause."""


class Answer(NamedTuple):
    """Results of a probe up to its end."""

    results: list[dict[str, Any]]
    end: str | None
    """Reason of an abnormal end, else None."""

    @property
    def facts(self) -> dict[str, Any]:
        """All results, merged."""
        return {key: value for result in self.results for key, value in result.items()}


def ask(probe: str, *args: str, timeout: float) -> Answer:
    """Run a probe of ``doctor.probe`` in a process with the same module search path, for at most ``timeout`` seconds."""
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ  # a run may be using most of the GPU's memory
    command = python_command("jaxrl.runtime.doctor.probe", probe, *args)
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, env=environment, check=False)
    except subprocess.TimeoutExpired as error:
        return Answer(_read(error.stdout), f"timed out after {timeout:g} s")
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

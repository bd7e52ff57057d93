"""Long-lived workers: a process that compiles once and then acts on command, a line of JSON at a time. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Handler = Callable[..., dict[str, Any]]


class WorkerError(RuntimeError):
    """A worker died or refused a command; the message ends with what it printed last."""


class Worker:
    """A worker's handle; a context manager that ends the process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The worker's answer to a command; blocks until it is there."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise WorkerError(f"{' '.join(self._command)} ended with code {self._process.wait()} at {op!r}:\n{self._tail()}")
        return json.loads(answer)

    def _tail(self) -> str:
        self._log.seek(0)
        return "".join(self._log.readlines()[-20:])

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """End the process, which holds nothing that this could spoil; whoever waits for an answer gets an error."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and close what it talked through."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer commands from stdin until it closes. Whatever else is printed meanwhile goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        arguments = json.loads(line)
        answers.write(json.dumps(handlers[arguments.pop("op")](**arguments)) + "\n")
        answers.flush()


def clean_environment(cache: Path) -> dict[str, str]:
    """The environment of a worker: the user's without settings that steer JAX (but the platform), and a compilation cache.

    Both sides get the same one, and neither inherits what only one of them would profit from.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "JAXRL_", "XLA_", "PYTHON"))}
    if platforms := os.environ.get("JAX_PLATFORMS"):
        kept["JAX_PLATFORMS"] = platforms
    return kept | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

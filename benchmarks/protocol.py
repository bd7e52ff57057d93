"""Long-lived worker processes that compile once and then execute commands, one line of JSON each. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Handler = Callable[..., dict[str, Any]]
ANSWER_SECONDS = 1800.0
"""Time after which a worker that does not answer is killed: a peer's program can deadlock."""


class WorkerError(RuntimeError):
    """A worker died or refused a command. The message ends with its last output."""


class Worker:
    """Handle of a worker process. A context manager that ends the process on exit."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return the worker's answer. Blocks until it arrives, at most ``ANSWER_SECONDS``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()  # before the kill, whose end of output the waiting thread sees at once
            self.kill()

        deadline = threading.Timer(ANSWER_SECONDS, stop)
        deadline.daemon = True
        deadline.start()
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            deadline.cancel()
        if not answer:
            late = f"did not answer {op!r} within {ANSWER_SECONDS:g} s, and was killed"
            ended = f"ended with code {self._process.wait()} at {op!r}"
            raise WorkerError(f"{' '.join(self._command)} {late if is_late.is_set() else ended}:\n{self._tail()}")
        return json.loads(answer)

    def _tail(self) -> str:
        self._log.seek(0)
        return "".join(self._log.readlines()[-20:])

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """Kill the process. This loses no data. A thread that waits for an answer gets an error."""
        self._process.kill()

    def close(self) -> None:
        """End the process and close its streams."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer commands from stdin until it closes. All other output goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        arguments = json.loads(line)
        answers.write(json.dumps(handlers[arguments.pop("op")](**arguments)) + "\n")
        answers.flush()


def clean_environment(cache: Path) -> dict[str, str]:
    """Return a worker's environment variables: the user's without JAX settings except the platform, plus a compilation cache.

    All sides get the same variables, so none inherits a setting that helps only that side.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "JAXRL_", "XLA_", "PYTHON"))}
    if platforms := os.environ.get("JAX_PLATFORMS"):
        kept["JAX_PLATFORMS"] = platforms
    return kept | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

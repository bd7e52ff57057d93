"""``jaxrl train`` in a real pseudo-terminal: display, Ctrl-C, SIGTERM, and resuming."""

from __future__ import annotations

import contextlib
import csv
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxrl.runtime.checkpoint.manifest import steps
from tests.helpers.paths import ROOT
from tests.helpers.processes.children import soon

pytestmark = pytest.mark.expensive(60)

SMALL = ("--num-envs", "2", "--rollout-length", "4", "--num-epochs", "1", "--num-minibatches", "1")


class Terminal:
    """A process in a terminal of this test."""

    def __init__(self, *args: str) -> None:
        self.here, there = pty.openpty()
        size = {"COLUMNS": "100", "LINES": "40", "TERM": "xterm-256color"}
        environment = os.environ | size | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "jaxrl", *args]

        def lead() -> None:  # a separate session with this terminal, so that Ctrl-C comes from the keyboard, as for a user
            import fcntl
            import termios

            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment, preexec_fn=lead)
        os.close(there)
        self.raw = ""

    def read(self, seconds: float = 0.1) -> None:
        end = time.monotonic() + seconds  # the panel redraws itself forever
        with contextlib.suppress(OSError):  # the other end is closed
            while (left := end - time.monotonic()) > 0 and select.select([self.here], [], [], left)[0]:
                self.raw += os.read(self.here, 65536).decode(errors="replace")

    def wait_for(self, happened: Callable[[], bool]) -> None:

        def looked() -> bool:
            self.read()
            return happened() or self.process.poll() is not None

        assert soon(looked, 300) and happened(), self.text

    def press(self, keys: bytes) -> None:
        os.write(self.here, keys)

    def end(self) -> int:
        """Return the exit code."""
        deadline = time.monotonic() + 120
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        self.read()
        return self.process.wait(1)

    @property
    def text(self) -> str:
        """Return the output without the terminal's control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw).replace("\r", "")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.here)


@pytest.mark.slow
@pytest.mark.usefixtures("hangups_heard")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_cleanly_and_the_command_it_names_goes_on(number: int, code: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    progress = folder / "progress.csv"

    def rows() -> list[dict[str, str]]:
        return list(csv.DictReader(progress.read_text().splitlines())) if progress.exists() else []

    flags = [
        "--env",
        "tests.helpers.probes:action_choice",
        "--seeds",
        "2",
        "--chunk-iterations",
        "500",
        "--out",
        str(folder),
        *SMALL,
    ]
    terminal = Terminal("train", "ppo", *flags, "--total-steps", "100000000", "--eval-every", "0")
    try:
        terminal.wait_for(lambda: len(rows()) >= 4)
        if number == signal.SIGINT:
            terminal.press(b"\x03")
        else:
            terminal.process.send_signal(number)
        assert terminal.end() == code
    finally:
        terminal.close()
    text = terminal.text
    assert "Traceback" not in text and "╭─ PPO · " in text
    assert "env steps/s" in text and "ETA" in text
    told = r"stopped at step ([\d,]+) of 100,000,000 after .*; resume with: jaxrl (train --resume \S+)"
    stopped = re.search(told, text.replace("\n", " "))
    assert stopped, text[-2000:]
    step = int(stopped[1].replace(",", ""))
    assert int(rows()[-1]["rows"]) == step
    assert steps(folder / "checkpoints")[-1] == int(rows()[-1]["iteration"])

    before = rows()
    again = Terminal(*stopped[2].split(), "--trust", "tests")
    try:
        again.wait_for(lambda: len(rows()) >= len(before) + 4)
        again.press(b"\x03")
        assert again.end() == 130
    finally:
        again.close()
    assert f"resumed at step {step:,}" in again.text
    after = rows()
    assert after[: len(before)] == before
    iterations = [int(row["iteration"]) for row in after if row["seed"] == "0"]
    assert iterations == sorted(set(iterations))


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    """Otherwise the current chunk would take hours."""
    flags = ["--env", "tests.helpers.probes:action_choice", "--out", str(tmp_path / "run"), *SMALL, "--eval-every", "0"]
    terminal = Terminal("train", "ppo", *flags, "--total-steps", "2000000000", "--chunk-iterations", "200000000")
    try:
        terminal.wait_for(lambda: "compiling" in terminal.text)
        time.sleep(20)  # until the chunk computes
        for _ in range(100):
            terminal.press(b"\x03")
            terminal.read(0.3)
            if terminal.process.poll() is not None:
                break
        assert terminal.end() == 130
    finally:
        terminal.close()
    assert "Traceback" not in terminal.text and "interrupted" in terminal.text

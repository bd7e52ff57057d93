"""Signals in real processes: Ctrl-C during imports, a terminal that closes, sweeps that wait for their job."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxrl.runtime.training_loop import signals
from jaxrl.runtime.training_loop.signals import Interrupt, handled, leave_while_loading
from tests.helpers.command_line import ENV, SMALL, start, wait_for
from tests.helpers.paths import ROOT

LOADED = "import time:"
"""Prefix of the line that ``-X importtime`` writes after each module."""

JOB = """
import sys, time
from pathlib import Path
from jaxrl.runtime.training_loop.signals import Interrupt, handled
interrupt = Interrupt()
with handled(interrupt.handle):
    Path("ready").touch()
    while not interrupt.requested:
        time.sleep(0.01)
    time.sleep(0.5)
Path("saved").touch()
sys.exit(128 + interrupt.requested)
"""
"""Stands for a run: it saves when it gets a signal."""

SWEEP = f"""
import sys
from jaxrl.runtime.search import sweep
from jaxrl.runtime.cli.main import main, run_and_exit
run_job = sweep.run_job
sweep.run_job = lambda command: run_job([sys.executable, "-c", {JOB!r}])
run_and_exit(lambda: main(["sweep", "grid.toml", "--out", "out"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "moments"),
    [
        (["jaxrl", "train", "ppo", "--env", ENV, "--total-steps", "10", *SMALL], (1, 30, 120, 350, 600, 800)),
        (["jaxrl.runtime.cli.sweep_job", "folder", "job"], (3, 150)),
    ],
)
def test_ctrl_c_while_modules_load_is_one_line(command: list[str], moments: tuple[int, ...], tmp_path: Path) -> None:
    """Moments are counted in modules loaded since jaxrl's first line, not in seconds."""
    for moment in moments:
        process = start("-X", "importtime", "-m", *command, cwd=tmp_path)
        assert process.stderr
        loaded, said = None, []
        for line in process.stderr:
            if not line.startswith(LOADED):
                said.append(line)
            elif loaded is not None:
                loaded += 1
                if loaded == moment:
                    process.send_signal(signal.SIGINT)
            elif line.rstrip().endswith(" jaxrl.runtime.cli.main"):
                loaded = 0
        assert process.wait(60) == 130 and said == ["jaxrl: interrupted\n"], (moment, loaded, said)


def test_ctrl_c_while_modules_load_ends_a_process_that_has_no_stderr() -> None:
    code = (
        "import os, signal; from jaxrl.runtime.training_loop.signals import leave_while_loading;"
        "signal.signal(signal.SIGINT, leave_while_loading); os.close(2);"
        "exec(compile('signal.raise_signal(signal.SIGINT)', '<frozen importlib of a test>', 'exec'))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 130


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, changed by hand."""
    now = [1000.0]
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(signals, "_last_wish", -math.inf)
    return now


@pytest.mark.usefixtures("hangups_heard")
def test_signals_that_come_several_times_are_one_wish_but_a_later_ctrl_c_is_impatience(clock: list[float]) -> None:
    wish = Interrupt()
    with handled(wish.handle):
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.raise_signal(number)
        clock[0] += 0.4
        signal.raise_signal(signal.SIGINT)  # from `timeout --signal INT`, which signals its child and the group
        clock[0] += 3600
        signal.raise_signal(signal.SIGTERM)
        assert wish.requested == signal.SIGHUP
        clock[0] += 0.6
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # its echo
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_an_echo_does_not_interrupt_what_a_command_does_at_its_end(clock: list[float]) -> None:
    before = signal.signal(signal.SIGINT, leave_while_loading)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        clock[0] += 0.4
        signal.raise_signal(signal.SIGINT)
        clock[0] += 0.2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_under_nohup_a_closing_terminal_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        wish = Interrupt()
        with handled(wish.handle):
            signal.raise_signal(signal.SIGHUP)
            assert not wish.requested and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_tests_of_signals_pass_under_nohup() -> None:
    """Tests that need SIGHUP restore its default handling, and it is ignored again after them."""
    chosen = [
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/runtime/training_loop/test_interrupt.py",
        "-k",
        "several_times or nohup_a",
    ]
    code = (
        "import signal, sys, pytest; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        f"code = pytest.main({chosen}); sys.exit(code or signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("hangups_heard")
@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [
        (signal.SIGTERM, False, 143),
        (signal.SIGHUP, False, 129),
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, True, 143),
        (signal.SIGINT, True, 130),
    ],
)
def test_a_sweep_ends_with_the_code_of_its_signal_after_its_job_saved(
    number: int, to_all: bool, code: int, tmp_path: Path
) -> None:
    """A terminal and a batch system also send it to the job, which may get it up to three times."""
    text = 'algorithm = "ppo"\nenv = "CartPole-v1"\ntotal_steps = 64\n[grid]\nnum_envs = [2, 4]\n'
    (tmp_path / "grid.toml").write_text(text)
    process = start("-c", SWEEP, cwd=tmp_path, start_new_session=True)
    wait_for(tmp_path / "ready", process)
    (os.killpg if to_all else os.kill)(process.pid, number)
    os.kill(process.pid, number)  # as `timeout` does
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "jaxrl: interrupted\n") and (tmp_path / "saved").exists()
    assert out.splitlines() == ["job 1 of 2: num_envs=2"]


@pytest.mark.slow
def test_a_job_whose_sweep_is_killed_stops_and_saves(tmp_path: Path) -> None:
    job = f"from jaxrl.runtime.search.sweep import stop_with_parent; stop_with_parent(){JOB}"
    code = f"import sys; from jaxrl.runtime.search.sweep import run_job; run_job([sys.executable, '-c', {job!r}])"
    process = start("-c", code, cwd=tmp_path)
    wait_for(tmp_path / "ready", process)
    process.kill()
    process.communicate(timeout=60)
    for _ in range(600):
        if (tmp_path / "saved").exists():
            break
        time.sleep(0.1)
    assert (tmp_path / "saved").exists()


@pytest.mark.slow
def test_a_job_that_is_killed_while_it_loads_ends_its_sweep_as_the_signal_does(tmp_path: Path) -> None:
    code = (
        "import signal, sys; from jaxrl.runtime.search.sweep import run_job;"
        "print(run_job([sys.executable, '-c', 'import os; os.kill(os.getpid(), 15)']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "(143, 15)", done.stderr

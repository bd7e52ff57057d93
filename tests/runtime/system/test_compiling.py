"""Signals during XLA's compilation, which Python's main thread does not notice: the run ends without delay and can be resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.runtime.run import RunInterrupted
from jaxrl.runtime.system.compiling import THREAD, Abandoned, CompiledCall, Compiling, under_way, waiting_unless
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, small_ppo
from tests.helpers.command_line import ENV, SMALL, start, wait_for
from tests.helpers.hosted import hosted

PATCH = """
import sys, threading
from pathlib import Path
import jax
original = jax.stages.Lowered.compile
def compile(self, *args):
    if threading.current_thread().name != "jaxrl-compile":  # a glance at the compiler's options
        return original(self, *args)
    Path("compiling").touch()
    threading.Event().wait()  # longer than anybody does
jax.stages.Lowered.compile = compile
"""
"""Replaces the compiler by a slow one, as on a busy machine."""

COMMAND = f"""
{PATCH}
from jaxrl.runtime.cli.main import main, run_and_exit
run_and_exit(lambda: main(sys.argv[1:]))
"""

SCRIPT = f"""
{PATCH}
import jaxrl
from tests.helpers.agents import small_ppo
jaxrl.run(small_ppo({ENV!r}), 64, out="run", quiet=True)
"""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Send SIGTERM while a compiler works, which ends with the test."""
    ended, original = threading.Event(), jax.stages.Lowered.compile

    def compile_(self: Any, *args: Any) -> Any:
        if threading.current_thread().name != THREAD:  # a query of the compiler's options
            return original(self, *args)
        os.kill(os.getpid(), signal.SIGTERM)
        ended.wait(300)
        raise RuntimeError("nobody waits for this")

    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", compile_)
        yield
    ended.set()


def stop(process: subprocess.Popen[str], folder: Path, number: int) -> tuple[list[str], list[str]]:
    wait_for(folder / "compiling", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, (out, err)
    return out.splitlines(), err.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_stopped_while_it_compiles_ends_at_once_and_resumes_from_the_start(number: int, tmp_path: Path) -> None:
    command = ["train", "ppo", "--env", ENV, "--total-steps", "64", "--eval-every", "0", "--out", "run", *SMALL]
    out, err = stop(start("-c", COMMAND, *command, cwd=tmp_path), tmp_path, number)
    assert err == [] and [line for line in out if "stopped at step 0 of 64" in line] == out[-1:]
    assert out[-1].endswith("resume with: jaxrl train --resume run --trust tests")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.json", "status.json"}
    if number == signal.SIGTERM:
        resumed, history = jaxrl.resume(tmp_path / "run", quiet=True, trust="tests")
        agent = jaxrl.make_ppo(ENV, num_envs=2, rollout_length=4, num_epochs=1, num_minibatches=1)
        whole, _ = jaxrl.run(agent, 64, eval_every=0, quiet=True)
        assert_bit_equal(resumed, whole)
        assert history["rows"][-1] == 64


@pytest.mark.slow
def test_a_script_that_is_stopped_while_it_compiles_ends_at_once_with_one_line(tmp_path: Path) -> None:
    out, err = stop(start("-c", SCRIPT, cwd=tmp_path), tmp_path, signal.SIGTERM)
    assert out == [] and len(err) == 1 and err[0].startswith("jaxrl: stopped at step 0 of 64")


@pytest.mark.slow
def test_a_script_that_is_stopped_between_chunks_ends_with_one_line_too() -> None:
    code = (
        "from jaxrl.runtime.run import RunInterrupted; from jaxrl.runtime.training_loop.signals import end_in_a_line\n"
        "end_in_a_line()\n"
        "raise RunInterrupted('stopped', None, {}, 15, shown=%s)"
    )
    for shown, said in ((False, "jaxrl: stopped\n"), (True, "")):
        done = subprocess.run([sys.executable, "-c", code % shown], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (143, said)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("on_host", [False, True], ids=["fused", "host"])
def test_a_caller_that_catches_it_has_a_folder_to_go_on_with(on_host: bool, tmp_path: Path) -> None:
    env = probes.action_choice()
    with pytest.raises(RunInterrupted, match=r"stopped at step 0 of 64 .* resume with: ") as caught:
        jaxrl.run(small_ppo(hosted(env) if on_host else env), 64, out=tmp_path / "run", quiet=True)
    assert (caught.value.states, caught.value.history, caught.value.signal) == (None, {}, signal.SIGTERM)
    assert under_way() and {path.name for path in (tmp_path / "run").iterdir()} == {"config.json", "status.json"}


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
def test_a_resumed_run_that_is_stopped_while_it_compiles_is_where_it_was(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(RunInterrupted, match=r"stopped at step 64 of 128 .* resume with: ") as caught:
        jaxrl.resume(tmp_path / "run", total_steps=128, quiet=True)
    assert caught.value.states is None and caught.value.history["rows"][-1] == 64
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} | before == before


def test_a_compiler_is_waited_for_unless_there_is_a_reason_not_to() -> None:
    done, leave = threading.Event(), [False]

    def compile_() -> int:
        leave[0] = True
        done.wait(300)
        return 3

    with waiting_unless(lambda: leave[0]):
        compiling = Compiling(compile_)
        with pytest.raises(Abandoned):
            compiling.result()
        assert under_way()
        leave[0] = False
        done.set()
        assert compiling.result() == 3
    failing = Compiling(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.result()


def test_a_prepared_function_is_traced_and_compiled_once() -> None:
    traced, compiled = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )

    def double(x: Any) -> Any:
        traced.append(x)
        return 2 * x

    function, x = CompiledCall(jax.jit(double)), np.arange(7.0)
    compiled.clear()
    with waiting_unless(lambda: False):
        assert function(x).tolist() == function(x).tolist() == (2 * x).tolist()
    assert len(traced) == len(compiled) == 1

"""Ends of a learner: no worker process is left, and its checkpoint can be resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jaxrl
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.runtime.checkpoint.manifest import steps
from tests.helpers.agents import small
from tests.helpers.gymnasium_envs import Told
from tests.helpers.paths import ROOT
from tests.helpers.processes.actor_pools import nothing_left, segments, workers_of
from tests.helpers.processes.children import runs, soon, stop

SETTINGS: dict[str, Any] = {"seeds": [3, 5], "chunk_iterations": 1, "eval_every": 0, "tensorboard": False, "quiet": True}
FINISHED = 10**7
"""More rows than any run here reaches."""

LEARNER = f"""
import sys
from tests.helpers.agents import small
import jaxrl
agent = small("a2c", "gymnasium:tests.helpers.gymnasium_envs:Told?mark='/nowhere/none'")
jaxrl.run(agent, {FINISHED}, out=sys.argv[1], num_workers=2, **{SETTINGS!r})
"""


def iterations(out: Path) -> int:
    """Return the number of iterations that a run has logged so far."""
    try:
        return json.loads((out / "records.jsonl").read_text().splitlines()[-1])["iteration"]
    except (OSError, IndexError, ValueError):
        return -1


class Learner:
    """A run in a separate process, which leads its process group, as if started by a terminal."""

    def __init__(self, out: Path) -> None:
        self.out, before = out, iterations(out)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LEARNER, str(out)],
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert soon(lambda: iterations(out) >= before + 3 or self.process.poll() is not None, 300)
        assert self.process.poll() is None, self.process.communicate()[1]
        self.workers = [pid for pid in workers_of(self.process.pid) if b"transports.worker" in command(pid)]
        assert len(self.workers) == 2

    def ended(self) -> str:
        """Return its output. Assert that no process of it is left."""
        _, said = self.process.communicate(timeout=120)
        assert soon(lambda: not any(map(runs, self.workers)))
        return said


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_learner_ends_with_its_workers(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, which reaches its process group, and SIGTERM save and say how to resume.

    SIGKILL leaves no process either, although one worker is stopped and cannot notice it. The second run resumes where the first
    one ended.
    """
    out, names = tmp_path / "run", segments()
    learner = Learner(out)
    (os.killpg if number == signal.SIGINT else os.kill)(learner.process.pid, number)
    said = learner.ended()
    assert said.startswith("jaxrl: stopped at step") and "resume with: " in said and said.count("\n") == 1, said
    assert learner.process.returncode == 128 + number
    assert max(steps(out / "checkpoints")) == iterations(out)
    learner = Learner(out)
    stop(learner.workers[1])
    learner.process.kill()
    assert "Traceback" not in learner.ended()
    assert segments() <= names


@pytest.mark.slow
def test_a_run_that_loses_too_many_workers_goes_on_when_it_is_asked(tmp_path: Path) -> None:
    """Its checkpoint is of the last complete iteration, and the error is raised after it is written."""
    out, mark = tmp_path / "run", tmp_path / "order"
    agent = small("a2c", f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={mark}")
    rows = agent.steps_per_iteration

    def disturb(chunk: Any) -> None:
        """Make worker 0 fail in the next rollout, and its replacements at their start."""
        if chunk.iteration == 3:
            (pid,) = [pid for pid in workers_of(os.getpid()) if b"transports.worker" in command(pid)]
            Told.tell(mark, pid, "exit")

    scheme = {"num_workers": 1, "max_restarts": 0}
    with (
        nothing_left(),
        pytest.raises(WorkerFailed, match=r"^worker 0 \(.*\) ended with exit code 3 at rollout 3, after max_restarts=0"),
    ):
        jaxrl.run(agent, 6 * rows, out=out, scheme=scheme, on_chunk=disturb, **SETTINGS)
    assert max(steps(out / "checkpoints")) == iterations(out) == 3
    log = (out / "workers" / "worker-0.log").read_text()
    assert not re.search("Traceback", log)
    with nothing_left():
        states, history = jaxrl.resume(out, quiet=True)
    assert states.iteration.tolist() == [6] * 2 and history["iteration"].tolist() == [1, 2, 3, 4, 5, 6]
    with nothing_left():
        states, _ = jaxrl.run(agent, 7 * rows, out=out, scheme=scheme, **SETTINGS)
    assert states.iteration.tolist() == [7] * 2


FILES = """
import gc, os, resource
from tests.helpers.agents import small
from tests.helpers.processes.actor_pools import workers_of
from tests.helpers.processes.children import soon, runs
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.runtime.actors.pool import ActorPool
agent = small("a2c", "gymnasium:CartPole-v1", num_envs=8)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for more in (3, 8, 14, 20):
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more, hard))
    before = len(os.listdir("/proc/self/fd"))
    try:
        pool = ActorPool(agent, [0], num_workers=8)
        print("opened")
        pool.close()
    except (OSError, WorkerFailed) as error:
        print(type(error).__name__, str(error).replace(chr(10), " NEWLINE "))
    assert soon(lambda: not [pid for pid in workers_of(os.getpid()) if runs(pid)])
    gc.collect()
    print(len(os.listdir("/proc/self/fd")) - before)
"""


@pytest.mark.slow
def test_too_few_open_files_are_one_error(tmp_path: Path) -> None:
    """At any point where they run out, with a fix. No process and no open file is left."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, "-c", FILES], capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment, check=False
    )
    lines = told.stdout.splitlines()
    assert told.returncode == 0 and len(lines) == 8, told
    assert all("too many open files" in line and "ulimit -n" in line and "NEWLINE" not in line for line in lines[::2]), lines
    assert lines[1::2] == ["0"] * 4, lines

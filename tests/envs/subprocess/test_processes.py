"""Environments in worker processes: every failure there is one readable error here, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.envs import make_env
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.subprocess.child import RemoteTraceback
from jaxrl.envs.subprocess.processes import Processes, WorkerRestarted
from jaxrl.runtime.cli.main import main
from jaxrl.types import HostEnv
from tests.helpers.paths import ROOT
from tests.helpers.processes.children import runs, soon
from tests.helpers.worker_rows import numbers

FAILING = "gymnasium:tests.helpers.gymnasium_envs:Failing"


def opened(num_envs: int = 4, **options: Any) -> Any:
    env = make_env(FAILING, **{"num_workers": 2, **options})
    assert isinstance(env, HostEnv)
    envs = env.open(num_envs, 0)
    envs.reset()
    return envs


def games(mark: Path) -> list[int]:
    """Return the processes that ``Failing`` has started."""
    return [int(path.name.rpartition(".")[2]) for path in mark.parent.glob(f"{mark.name}.*")]


def test_there_is_at_least_one_process() -> None:
    for num_workers in (0, 1.5):
        with pytest.raises(ValueError, match=f"num_workers={num_workers} must be an integer >= 1"):
            Processes("mine", lambda *args: None, 2, 0, num_workers=num_workers, timeout=60)  # type: ignore[arg-type, return-value]


AT = np.array([0, 0, 1, 0])
"""Environment 2 fails, the first one of the second process."""


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        (
            "raise",
            EnvironmentFailed,
            r"environment 2 raised ZeroDivisionError: in the world \(.*gymnasium_envs.py, line \d+\)$",
        ),
        (
            "shape",
            EnvironmentFailed,
            r"environment 2: obs is float32\[2\], but observation_space is float32\[1\]: they",
        ),
        ("type", EnvironmentFailed, r"environment 2: obs is complex128\[1\], but observation_space is float32\[1\]"),
        ("nothing", EnvironmentFailed, r"environment 2: obs is object\[\]"),
        ("reward", EnvironmentFailed, r"environment 2: reward is ndarray\[1\]; it must be one number$"),
        ("text", EnvironmentFailed, r"environment 2: reward is str\[\]; it must be one number$"),
        ("terminated None", EnvironmentFailed, r"environment 2: terminated is None; it must be True or False$"),
        ("terminated no", EnvironmentFailed, r"environment 2: terminated is 'no'; it must be True or False$"),
        ("terminated 2", EnvironmentFailed, r"environment 2: terminated is 2; it must be True or False$"),
        ("old", EnvironmentFailed, r"environment 2: step must return \(obs, reward, terminated, truncated, info\)"),
        ("die", ChildProcessError, r"the process of environments 2 to 3 was killed by SIGABRT during step$"),
        ("exit", ChildProcessError, r"the process of environments 2 to 3 ended with exit code 3 during step$"),
        ("hang", TimeoutError, r"step of environments 2 to 3 did not finish in 1 s, .* hangs, or needs a larger worker_timeout$"),
    ],
)
def test_what_goes_wrong_in_a_worker(how: str, error: Any, message: str, tmp_path: Path) -> None:
    """No process is left, not even those that environments started, and the environments are closed."""
    envs = opened(how=how, mark=str(tmp_path / "game"))
    envs._timeout = 1.0 if how == "hang" else 120.0
    envs.step(np.zeros(4, int))
    left = [pid for pid in [*numbers(envs), *games(tmp_path / "game")] if runs(pid)]
    assert len(left) == 2 + 4
    with pytest.raises(error, match=rf"^gymnasium:tests.helpers.gymnasium_envs:Failing: {message}") as raised:
        envs.step(AT)
    assert "\n" not in str(raised.value)
    assert soon(lambda: not any(map(runs, left)))
    assert isinstance(raised.value.__cause__, RemoteTraceback) == (error is EnvironmentFailed)
    with pytest.raises(RuntimeError, match=r"Failing: these environments are closed; open\(\) gives new ones"):
        envs.step(AT)
    envs.close()


@pytest.mark.parametrize("how", ["raise", "shape", "reward", "old"])
def test_what_goes_wrong_in_this_process(how: str) -> None:
    """With the same message, and the environment's error as the cause."""
    envs = opened(how=how, num_workers=0)
    with pytest.raises(
        EnvironmentFailed, match=r"^gymnasium:tests.helpers.gymnasium_envs:Failing: environment 2.*[^)\n]\)?$"
    ) as raised:
        envs.step(AT)
    assert isinstance(raised.value.__cause__, ZeroDivisionError if how == "raise" else ValueError)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("how", "message"), [("reset", r"raised KeyError: 'start'"), ("reset shape", r"obs is float32\[2\]")])
def test_what_goes_wrong_at_the_start(how: str, message: str, num_workers: int) -> None:
    with pytest.raises(EnvironmentFailed, match=rf"Failing: environment [02]:? {message}"):
        opened(how=how, num_workers=num_workers)


def test_an_option_has_them_replaced() -> None:
    """For gymnasium's environments."""
    envs = opened(how="exit", worker_restarts=1)
    envs.step(np.zeros(4, int))
    with pytest.warns(WorkerRestarted, match=r"Failing: the process of environments 2 to 3 ended with exit code 3 during step; "):
        assert envs.step(AT).reward.tolist() == [1, 1, 0, 0]
    assert envs.begun_anew().tolist() == [False, False, True, True]
    envs.close()
    with pytest.raises(ValueError, match="worker_restarts=-1 must be an integer >= 0"):
        opened(worker_restarts=-1)


def test_closing_leaves_nothing(tmp_path: Path) -> None:
    """By ``close``, and when the object is deleted."""
    envs = opened(mark=str(tmp_path / "game"))
    first = [*numbers(envs), *games(tmp_path / "game")]
    envs.close()
    assert soon(lambda: not any(map(runs, first)))
    envs = opened()
    second = numbers(envs)
    del envs
    assert len(second) == 2 and soon(lambda: not any(map(runs, second)))


def test_no_more_processes_than_environments() -> None:
    envs = opened(num_envs=3, num_workers=8)
    assert [(part.first, part.last) for part in envs._parts] == [(0, 0), (1, 1), (2, 2)]
    envs.close()


def test_what_cannot_be_sent_is_told() -> None:
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"^mine cannot be sent to other processes \(cannot pickle .*top of a module, or"):
        Processes("mine", lambda *args: lock, 2, 0, num_workers=1, timeout=60)  # type: ignore[arg-type, return-value]


# ------------------------------------------------------------------------------------------------------------- whole processes

SCRIPT = """
import os, sys, time
import gymnasium
import numpy as np
from jaxrl.envs import make_env

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        time.sleep(600 * float(action))
        return np.zeros(1, np.float32), 1.0, False, False, {}

gymnasium.register("Mine-v0", "__main__:Mine")
envs = make_env("gymnasium:Mine-v0?num_workers=2").open(2, 0)
envs.reset()
print(*envs.step(np.zeros(2, int)).reward, "jax" in sys.modules, flush=True)
print(*[part.child.process.pid for part in envs._parts], flush=True)
"""
"""A script without ``if __name__ == "__main__"``, and with an environment that other processes cannot import."""


def started(tmp_path: Path, more: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a script in a separate process group, as a terminal does. Return it and its workers."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + more)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = subprocess.Popen(
        [sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, env=environment
    )
    assert script.stdout is not None
    assert script.stdout.readline().split() == ["1.0", "1.0", "False"], script.communicate()[
        1
    ]  # and none of them has imported jax
    workers = [int(number) for number in script.stdout.readline().split()]
    assert len(workers) == 2 and all(map(runs, workers))
    return script, workers


def test_a_script_needs_no_guard_and_leaves_nothing(tmp_path: Path) -> None:
    script, workers = started(tmp_path, "")
    out, err = script.communicate(timeout=60)
    assert (script.returncode, out, err) == (0, "", "")
    assert soon(lambda: not any(map(runs, workers)))


def test_a_copy_of_this_process_leaves_them_alone(tmp_path: Path) -> None:
    """A copy made by ``fork`` has copies of all objects, and ends in the usual way."""
    more = """
if (copy := os.fork()) == 0:
    sys.exit(0)
print(os.waitpid(copy, 0)[1], *envs.step(np.zeros(2, int)).reward)
"""
    script, workers = started(tmp_path, more)
    out, err = script.communicate(timeout=60)
    assert (script.returncode, out, err) == (0, "0 1.0 1.0\n", "")
    assert soon(lambda: not any(map(runs, workers)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(number: signal.Signals, tmp_path: Path) -> None:
    """One of them is in a step that does not end. By Ctrl-C, which reaches the whole group, or by any other death."""
    script, workers = started(tmp_path, "print('now', flush=True)\nenvs.step(np.array([0, 1]))\n")
    assert script.stdout is not None and script.stdout.readline() == "now\n"
    time.sleep(0.3)
    os.killpg(script.pid, number)
    _, err = script.communicate(timeout=60)
    assert script.returncode == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT) and "envs/worker.py" not in err
    assert soon(lambda: not any(map(runs, workers)))


@pytest.mark.slow
def test_the_command_line_says_it_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For failures of an environment in this process and in another."""
    sizes = ["--num-envs", "2", "--rollout-length", "8", "--num-minibatches", "1", "--total-steps", "64", "--eval-every", "0"]
    for number, (options, message) in enumerate(
        [
            ("how=raise", "environment [01] raised ZeroDivisionError: in the world"),
            ("how=raise&num_workers=1", "environment [01] raised ZeroDivisionError: in the world"),
            ("how=die&num_workers=1", "the process of environments 0 to 1 was killed by SIGABRT during step"),
        ]
    ):
        out = str(tmp_path / str(number))
        assert main(["train", "ppo", "--env", f"{FAILING}?{options}", *sizes, "--out", out, "--quiet"]) == 2
        err = capsys.readouterr().err.strip()
        assert re.search(message, err) and "\n" not in err

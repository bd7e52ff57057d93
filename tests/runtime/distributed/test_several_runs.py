"""Runs of several processes: they equal runs of one process, resume each other, stop together, and refuse together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.runtime.checkpoint.manifest import steps
from jaxrl.runtime.logs.run_folder import CHECKPOINTS
from tests.helpers.paths import ROOT
from tests.helpers.ports import free_port
from tests.helpers.processes.children import soon
from tests.helpers.processes.several_runs import call, plain_leaves

PPO: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "CartPole-v1",
    "seeds": 2,
    "eval_episodes": 2,
    "eval_every": 100,
    "chunk_iterations": 1,
}
POOL = PPO | {"env": "envpool:CartPole-v1", "settings": {"normalize_observations": True}, "eval_every": 4, "total_steps": 256}


@contextmanager
def started(number: int, calls: list[dict[str, Any]], result: Path, **variables: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start ``number`` processes of one device each, which make these calls together."""
    at, flags = (
        f"127.0.0.1:{free_port()}",
        re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", "")),
    )
    group = {"JAXRL_COORDINATOR": at, "JAXRL_NUM_PROCESSES": str(number), "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": flags}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.processes.several_runs", json.dumps(calls), str(result)],
            cwd=ROOT,
            env={**os.environ, **group, "JAXRL_PROCESS_ID": str(i), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(number)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ended(processes: list[subprocess.Popen[str]], code: int = 0) -> list[str]:
    """Return each process's output after all have ended with ``code``."""
    printed = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), "\n".join(printed)
    return printed


def leaves_of(result: Path, call: int, number: int) -> list[np.ndarray]:
    with np.load(f"{result}-{call}-{number}.npz") as saved:
        return [saved[name] for name in saved.files]


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = 0.0) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.astype(np.float64), other.astype(np.float64), rtol=tolerance, atol=tolerance)


def wait_for(true: Callable[[], Any], processes: list[subprocess.Popen[str]]) -> None:
    ended = lambda: any(process.poll() is not None for process in processes)  # noqa: E731
    assert soon(lambda: true() or ended(), 120) and not ended()


@pytest.mark.slow
def test_a_signal_to_one_stops_all_and_one_process_goes_on(tmp_path: Path) -> None:
    """SIGTERM to one of two gives one checkpoint of one step.

    One process with two devices resumes it, as if it had been alone.
    """
    folder = tmp_path / "run"
    run = PPO | {"total_steps": 25_600, "out": str(folder)}
    with started(2, [run | {"checkpoint_every": 0.2}], tmp_path / "result") as processes:
        wait_for(lambda: steps(folder / CHECKPOINTS), processes)
        processes[1].send_signal(signal.SIGTERM)
        printed = ended(processes, 128 + signal.SIGTERM)
    assert "2 seeds on 2 devices in 2 processes" in printed[0]
    assert "ETA" in printed[0] and "ETA" not in printed[1]  # only the first one shows the progress
    stopped = int(re.findall(r"stopped at step ([\d,]+)", printed[0])[-1].replace(",", ""))
    rows = json.loads((folder / "config.json").read_text())["run"]["rows_per_iteration"]
    assert max(steps(folder / CHECKPOINTS)) * rows == stopped < 25_600
    assert not (folder / CHECKPOINTS / "unfinished").exists()

    alone, history = call(**run | {"out": str(tmp_path / "alone")})
    states, resumed = call(**run)
    assert_same(plain_leaves(states), plain_leaves(alone))
    np.testing.assert_array_equal(resumed["losses/policy_loss"], history["losses/policy_loss"])


@pytest.mark.slow
def test_two_processes_go_on_for_one_learn_on_the_host_and_refuse_together(tmp_path: Path) -> None:
    folder, result = tmp_path / "run", tmp_path / "result"
    short, long = PPO | {"total_steps": 320, "out": str(folder)}, PPO | {"total_steps": 640}
    call(**short)
    elsewhere = tmp_path / "elsewhere"
    calls = [
        PPO | {"total_steps": 320, "odd": {"settings": {"num_epochs": 3}}},
        PPO | {"total_steps": 320, "odd": {"total_steps": 640}},
        PPO | {"total_steps": 320, "out": str(tmp_path / "new"), "odd": {"out": str(elsewhere)}},
        PPO | {"total_steps": 320, "seeds": 3, "settings": {"num_envs": 3}},
        POOL | {"scheme": "ga3c", "num_workers": 1},
        POOL | {"settings": {"num_envs": 3}},
        long | {"out": str(folder)},
        POOL,
        POOL | {"scheme": "a2c", "num_workers": 1},
    ]
    with started(2, calls, result) as processes:
        printed = ended(processes)
    expected = [
        r"process 1 differs from process 0: agent\.settings\.num_epochs is 3 there and \d in process 0\. Call",
        r"process 1 .* run\.total_steps is 640 there and 320 in process 0",
        r"out='.*elsewhere' is not the folder that process 0 made: name a folder on a file system that all machines share",
        r"3 seeds can use 1 of the 2 devices of 2 processes, but process 1 has none of them: use a number of seeds",
        r"inference='learner' is for one process, and this is one of 2\. .*: use scheme='a2c'",
        r"2 processes, each with one device, divide the environments of each seed: num_envs=3 must be a multiple",
    ]
    for text in printed:
        errors = [line for line in text.splitlines() if line.startswith("ERROR")]
        assert len(errors) == len(expected)
        for error, pattern in zip(errors, expected, strict=True):
            assert re.search(pattern, error), error
    assert not elsewhere.exists()

    fused, host = plain_leaves(call(**long)[0]), plain_leaves(call(**POOL)[0])
    for number in (0, 1):
        assert_same(leaves_of(result, 6, number), fused)
        assert_same(leaves_of(result, 7, number), host, 1e-5)
        assert_same(leaves_of(result, 8, number), host, 1e-5)


@pytest.mark.slow
def test_four_processes_restore_to_the_bit_what_one_has_saved(tmp_path: Path) -> None:
    """Two seeds over four devices share the environments of each.

    The continuation is equal up to the order of sums, also with DQN's replay.
    """
    runs = {name: PPO | {"algorithm": name, "total_steps": 960, "out": str(tmp_path / name)} for name in ("ppo", "dqn")}
    saved = {name: plain_leaves(call(**run)[0]) for name, run in runs.items()}
    longer = {"total_steps": 960 + 3 * 32}
    alone = plain_leaves(call(**PPO | longer)[0])
    with started(4, [*runs.values(), runs["ppo"] | longer], tmp_path / "result") as processes:
        printed = ended(processes)
    assert "2 devices share a seed's environments" in printed[0]
    for number in range(4):
        assert_same(leaves_of(tmp_path / "result", 0, number), saved["ppo"])
        assert_same(leaves_of(tmp_path / "result", 1, number), saved["dqn"])
        assert_same(leaves_of(tmp_path / "result", 2, number), alone, 1e-5)


@pytest.mark.slow
def test_replay_on_the_host_is_shared_out_and_goes_on_in_one_process(tmp_path: Path) -> None:
    """Each process keeps the rows of its environments. All learn the same from their shares of each batch."""
    folder, result = tmp_path / "run", tmp_path / "result"
    run = POOL | {"algorithm": "dqn", "settings": {}, "out": str(folder), "on_nan": "stop"}
    with started(2, [run, run | {"total_steps": 320}], result) as processes:
        printed = ended(processes)
    assert "resumed at step 256" in printed[0]
    for i in (0, 1):
        assert_same(leaves_of(result, i, 0), leaves_of(result, i, 1))
    _, history = call(**run | {"total_steps": 384})
    assert history["rows"][-1] == 384 and np.isfinite(history["losses/td_loss"][-1]).all()

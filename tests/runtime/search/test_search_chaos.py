"""Searches that are killed at any moment: in a part, between two boundaries, while a line or a checkpoint is written."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT

SCRIPT = """
import json, sys
from jaxrl.runtime.search import session
from jaxrl.runtime.search.search import search
session.CHECKPOINT_EVERY, session.SHARE = 0.0, 1.0
search(json.loads(sys.argv[1]), out=sys.argv[2], quiet=True)
"""
SEARCH: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "Pendulum-v1",
    "total_steps": 3_200,
    "seeds": 2,
    "settings": {"num_envs": 2, "rollout_length": 8, "num_epochs": 1, "num_minibatches": 1, "model": {"hidden_sizes": [8]}},
    "space": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}, "gamma": {"low": 0.8, "high": 0.999}},
    "search": {
        "method": "tpe",
        "trials": 60,
        "batch": 4,
        "rungs": [0.25, 0.5, 1.0],
        "eval_episodes": 8,
        "top": 1,
        "test_seeds": 2,
    },
}
KILLS = 30


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SCRIPT, json.dumps(SEARCH), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error.decode()


@pytest.mark.chaos
@pytest.mark.expensive(400)
def test_a_search_that_is_killed_at_random_moments_ends_as_one_that_was_not(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    finish(start(tmp_path / "whole"))
    rng, log = random.Random(0), tmp_path / "killed" / "trials.jsonl"
    killed = moved = 0
    while killed < KILLS:
        before = log.stat().st_size if log.exists() else 0
        process = start(tmp_path / "killed")
        while process.poll() is None and (log.stat().st_size if log.exists() else 0) == before:
            time.sleep(0.01)  # until the first boundary of this process, so that each makes progress
        time.sleep(rng.uniform(0, 0.3))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed, moved = killed + 1, moved + (log.stat().st_size > before)
    assert killed >= KILLS // 2 and moved
    finish(start(tmp_path / "killed"))
    for name in ("trials.jsonl", "results.csv", "best.toml", "search.png"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name

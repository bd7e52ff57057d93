"""The benchmark of worker processes: its sides run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import actors, transport
from benchmarks.other_process import started, step_raw
from benchmarks.protocol import WorkerError
from benchmarks.report import render


@pytest.mark.slow
def test_all_parts_run(tmp_path: Path) -> None:
    stepping = actors.Stepping("CartPole-v1", rollout_length=3, rollouts=2, num_envs=4, num_workers=1)
    slow = actors.Slow("gymnasium:benchmarks.waiting:Waiting?seconds=0.0", rollout_length=3, num_envs=2)
    result = actors.measure(1, 1.0, tmp_path, actors.Handing(2, 3, 1), (stepping,), slow)
    assert json.loads((tmp_path / "actors.json").read_text()) == result
    assert list(result["handing"]["seconds"]) == ["queue", "shared memory"]
    assert [list(case["steps_per_second"]) for case in (*result["stepping"], result["slow"])] == [
        ["raw", "workers", "pinned"],
        ["one process", "workers", "learner acts"],
    ]
    assert actors.actors_report(result) in render(tmp_path)


def test_a_rollout_of_pong_has_the_size_that_is_said() -> None:
    layout = transport.pong_rollout(64, 32)
    assert layout.places[0].shape == (1, 33, 64, 4, 84, 84) and layout.places[0].dtype == np.uint8
    assert 59e6 < layout.num_bytes < 60e6


@pytest.mark.slow
def test_another_process_that_ends_is_an_error() -> None:
    with pytest.raises(WorkerError, match=r"ended"), started(step_raw, "NoSuch-v0", 0, 1, 1, np.zeros((1, 1))) as other:
        other.wait()

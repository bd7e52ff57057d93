"""The benchmark of worker processes: its sides run, and its report is correct."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

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


RESULT: dict[str, Any] = {
    "command": "python -m benchmarks actors",
    "date": "today",
    "hardware": {"cpu": "a CPU", "cores": 2},
    "versions": {"jax": "1", "envpool": "2"},
    "handing": {"asked": 0.1, "bytes": 2**24, "seconds": {"queue": [0.1, 0.2, 0.4], "shared memory": [0.001, 0.004, 0.001]}},
    "stepping": [
        {
            "env": "Pong-v5",
            "num_envs": 64,
            "num_workers": 2,
            "asked": 0.8,
            "steps_per_second": {"raw": [100.0, 200.0, 400.0], "workers": [90.0, 190.0, 320.0], "pinned": [70.0, 150.0, 280.0]},
        }
    ],
    "slow": {
        "num_envs": 8,
        "asked": 6,
        "steps_per_second": {"one process": [100.0, 200.0], "workers": [700.0, 1400.0], "learner acts": [500.0, 800.0]},
    },
}


def cells(report: str, start: str) -> list[str]:
    """Return the cells of the table row with this start."""
    row = next(line for line in report.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in row.split("|")[1:-1]]


def test_the_report_divides_round_by_round() -> None:
    report = actors.actors_report(RESULT)
    assert cells(report, "16 MiB") == ["16 MiB", "200.00", "1.00", "1.0%", "< 10%", "yes"]
    assert cells(report, "Pong-v5") == ["Pong-v5, 64 in 2 processes", "200", "90%", "70%", "≥ 80%", "yes"]
    assert cells(report, "one process") == ["one process", "150", "", "", ""]
    assert cells(report, "8 workers  ") == ["8 workers", "1,050", "7.00", "≥ 6", "yes"]
    assert cells(report, "8 workers, learner acts") == ["8 workers, learner acts", "650", "4.50", "", ""]
    assert not actors.missed(RESULT)


@pytest.mark.parametrize("part, asked", [("handing", 0.01), ("stepping", 0.95), ("slow", 7.5)])
def test_each_part_can_be_missed(part: str, asked: float) -> None:
    result = copy.deepcopy(RESULT)
    (result[part][0] if part == "stepping" else result[part])["asked"] = asked
    assert actors.missed(result) and actors.actors_report(result).count("NO") == 1

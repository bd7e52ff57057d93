"""The benchmark of samplers: its sides run, and its report is correct."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import sampling


def test_all_sides_collect() -> None:
    case = sampling.Case("CartPole-v1", 0.85, 3, 3)
    with sampling.raw(case) as rows:
        rows()
    with sampling.sampled(case, "alternating") as collect:
        rollout, _ = collect()
    assert rollout.reward.shape == (1, 3, sampling.NUM_ENVS) and rollout.valid.all()
    assert set(rollout.action.ravel().tolist()) == {0, 1}


@pytest.mark.parametrize("asked, met", [(0.85, "yes"), (0.95, "NO")])
def test_the_report_divides_round_by_round_and_judges_the_best(asked: float, met: str) -> None:
    rates = {"raw": [100.0, 200.0, 400.0], "sync": [50.0, 80.0, 240.0], "async": [90.0, 190.0, 320.0]}
    result: dict[str, Any] = {
        "command": "python -m benchmarks sampling",
        "date": "today",
        "hardware": {"cpu": "a CPU", "cores": 2},
        "versions": {"jax": "1", "envpool": "2"},
        "num_envs": 64,
        "cases": [{"env": "Pong-v5", "asked": asked, "rollout_length": 8, "steps_per_second": rates}],
    }
    assert sampling.shares(result["cases"][0]) == {"sync": 0.5, "async": 0.9}
    assert sampling.missed(result) == (met == "NO")
    row = next(line for line in sampling.sampling_report(result).splitlines() if "Pong" in line)
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["Pong-v5", "200", "50%", "90%", f"≥ {asked:.0%}", met]

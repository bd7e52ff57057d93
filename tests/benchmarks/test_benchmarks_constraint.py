"""The benchmark of constraints: figures and requirements of a result, and a tiny measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import constraint

ABOUT = {"command": "c", "date": "2026-01-01", "hardware": {"cpu": "a CPU"}, "versions": {"jax": "1"}}


@pytest.mark.parametrize(
    ("costs", "returns", "met"),
    [([2.9, 3.4], [9.0, 9.4], True), ([3.0, 3.4], [9.0, 9.4], False), ([2.0, 2.0], [8.0, 8.8], False)],
)
def test_mean_costs_and_returns_are_required(costs: list[float], returns: list[float], met: bool) -> None:
    programs = {"limited": {"return": returns, "cost": costs}, "unlimited": {"return": [10.0, 10.0], "cost": [12.0, 14.0]}}
    result: dict[str, Any] = {**ABOUT, "limit": 3.0, "seeds": [10, 11], "total_steps": 1_000_000, "programs": programs}
    assert constraint.missed(result) is not met
    report = constraint.constraint_report(result)
    assert "none" in report and "13.0 [" in report and ("NO" in report) is not met


def test_means_are_of_the_last_rows() -> None:
    history = {"rows": np.arange(1, 11) * 100, "cost": np.stack([np.arange(10.0), np.zeros(10)], 1)}
    assert constraint.last_mean(history, "cost") == [8.5, 0.0]


@pytest.mark.slow
def test_a_tiny_measurement(tmp_path: Path) -> None:
    result = constraint.measure(tmp_path / "out", tmp_path / "work", 20_000, quiet=True)
    assert json.loads((tmp_path / "out/constraint.json").read_text()) == json.loads(json.dumps(result))
    limited, unlimited = (result["programs"][name] for name in ("limited", "unlimited"))
    assert len(limited["cost"]) == len(unlimited["return"]) == 8 and np.isfinite(limited["cost"]).all()
    assert not (tmp_path / "work").exists()

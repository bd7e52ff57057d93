"""The benchmark of privileged critics: steps, requirements of a result, and a tiny measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import privileged

ABOUT = {"command": "c", "date": "2026-01-01", "hardware": {"cpu": "a CPU"}, "versions": {"jax": "1"}}


def test_steps_to_a_return() -> None:
    returns = np.array([[10.0, 20.0, np.nan], [480.0, 30.0, 475.0], [100.0, 474.0, 500.0]])
    assert privileged.steps_to(np.array([0, 64, 128]), returns, 475.0) == [64, None, 64]


@pytest.mark.parametrize(
    ("plain", "sees", "shown", "met"),
    [
        ([100, 200, 300], [90, 100, 250], "50%", True),
        ([100, 200, 300], [90, 110, 250], "55%", False),
        ([100, None, None], [90, 110, 250], "0%", True),
    ],
)
def test_medians_are_compared(plain: list[int | None], sees: list[int | None], shown: str, met: bool) -> None:
    result: dict[str, Any] = {**ABOUT, "total_steps": 400, "solved": 475.0, "steps": {"8": {"plain": plain, "privileged": sees}}}
    assert privileged.missed(result) is not met
    report = privileged.privileged_report(result)
    assert f" {shown} |" in report and "3 of 3" in report and ("NO" in report) is not met


@pytest.mark.slow
def test_a_tiny_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileged, "EPISODES", 2)
    monkeypatch.setattr(privileged, "SOLVED", 5.0)
    monkeypatch.setattr(privileged, "NUM_SEEDS", 2)
    monkeypatch.setattr(privileged, "SIZES", {8: 4})
    result = privileged.measure(tmp_path / "out", tmp_path / "work", 4_096, quiet=True)
    assert json.loads((tmp_path / "out/privileged.json").read_text()) == json.loads(json.dumps(result))
    assert all(len(steps) == 2 and steps[0] is not None for steps in result["steps"]["8"].values())
    assert not (tmp_path / "work").exists()

"""The benchmark of reincarnation: figures and requirements of a result, and a tiny measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import reincarnation
from benchmarks.arguments import TAUGHT
from benchmarks.reincarnation import CASES, Case
from jaxrl.algorithms.presets import PRESETS

ABOUT = {"command": "c", "date": "2026-01-01", "hardware": {"cpu": "a CPU"}, "versions": {"jax": "1"}, "episodes": 4}


@pytest.mark.parametrize(
    ("students", "alone", "met"),
    [([310, 290], [100, 200], True), ([240, 220], [100, 200], False), ([300, 300], [400, 400], False)],
)
def test_students_are_above_their_teacher_and_dqn(students: list[float], alone: list[float], met: bool) -> None:
    case = {"teacher": 250.0, "qdagger": students, "dqn": alone, "rows": 20_000, "teacher_steps": 10_000}
    result: dict[str, Any] = {**ABOUT, "cases": {"cartpole": case}}
    assert reincarnation.missed(result) is not met
    report = reincarnation.reincarnation_report(result)
    assert "20,000" in report and "10,000 steps" in report and ("NO" in report) is not met


def test_cases() -> None:
    assert tuple(CASES) == TAUGHT
    assert all(case.teacher_steps < PRESETS[case.teacher].total_steps for case in CASES.values())


@pytest.mark.slow
def test_a_tiny_reincarnation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reincarnation, "EPISODES", 4)
    monkeypatch.setattr(reincarnation, "NUM_SEEDS", 2)
    case = Case("ppo-cartpole", 4_000, 2_000, {"teacher_steps": 500})
    result = reincarnation.measure(tmp_path / "out", tmp_path / "work", cases={"cartpole": case}, quiet=True)
    assert json.loads((tmp_path / "out/reincarnation.json").read_text()) == json.loads(json.dumps(result))
    found = result["cases"]["cartpole"]
    assert [len(found[which]) for which in ("qdagger", "dqn")] == [2, 2] and found["rows"] == 2_048
    assert not (tmp_path / "work").exists()

"""The benchmark of distillation: figures and requirements of a result, and a tiny measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from benchmarks import distillation
from benchmarks.arguments import STUDENTS
from benchmarks.distillation import CASES, Case
from jaxrl.algorithms.presets import PRESETS

ABOUT = {"command": "c", "date": "2026-01-01", "hardware": {"cpu": "a CPU"}, "versions": {"jax": "1"}, "episodes": 4}


@pytest.mark.parametrize(
    ("teacher", "students", "below", "met"), [(100, [97, 101], "1.0%", True), (-100, [-103, -103], "3.0%", False)]
)
def test_students_are_compared_with_their_teacher(teacher: float, students: list[float], below: str, met: bool) -> None:
    case = {"teacher": float(teacher), "students": students, "rows": 50_000, "of": 500_000}
    result: dict[str, Any] = {**ABOUT, "cases": {"cartpole": case}}
    assert distillation.missed(result) is not met
    report = distillation.distillation_report(result)
    assert below in report and "50,000 of 500,000" in report and ("NO" in report) is not met


def test_cases() -> None:
    assert tuple(CASES) == STUDENTS and all(case.teacher in PRESETS for case in CASES.values())
    env: Any = jaxrl.make_env(str(CASES["cartpole-hidden"].env))
    obs, plain = (each.reset(jax.random.key(0), each.params)[1] for each in (env, jaxrl.make_env("CartPole-v1")))
    np.testing.assert_array_equal(distillation.whole_state(obs), plain)


@pytest.mark.slow
def test_a_tiny_distillation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "ppo-cartpole", PRESETS["ppo-cartpole"]._replace(total_steps=20_000))
    monkeypatch.setattr(distillation, "EPISODES", 4)
    case = Case("ppo-cartpole", "few units", {"model": {"hidden_sizes": (8,)}})
    result = distillation.measure(tmp_path / "out", tmp_path / "work", cases={"cartpole": case}, quiet=True)
    assert json.loads((tmp_path / "out/distillation.json").read_text()) == json.loads(json.dumps(result))
    found = result["cases"]["cartpole"]
    assert len(found["students"]) == 5 and found["rows"] <= 2_304 and found["of"] == 20_000
    assert not (tmp_path / "work").exists()

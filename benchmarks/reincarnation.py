"""Reincarnation: QDagger continues from a teacher that is not trained to its end, beside DQN from nothing with the same rows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jaxrl
from benchmarks.distillation import returns_of, trained_teacher
from benchmarks.markdown import Requirement, misses, origin, requirement_table, table
from benchmarks.record import write_result
from benchmarks.scores import bootstrap_interval
from benchmarks.speed import say
from jaxrl.algorithms.presets import PRESETS, interval_text
from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices

EPISODES = 1024
"""Greedy episodes of the teacher, and of each student."""
NUM_SEEDS = 8


class Case(NamedTuple):
    """A teacher, and the sizes of its student."""

    teacher: str
    """Preset of the teacher."""
    teacher_steps: int
    """Length of the teacher's training."""
    total_steps: int
    """Rows of QDagger, those of the teacher included, and of DQN."""
    student: dict[str, Any]
    """Settings of QDagger that DQN does not have; all others are the defaults of both."""


CASES = {
    "cartpole": Case("ppo-cartpole", 20_000, 10_000, {"teacher_steps": 2_000}),
    "acrobot": Case("ppo-acrobot", 100_000, 20_000, {"teacher_steps": 2_000}),
}


def measure(
    out: Path, work: Path, only: Sequence[str] = (), cases: Mapping[str, Case] = CASES, *, quiet: bool = False
) -> dict[str, Any]:
    """Train all teachers and students, and write ``out/reincarnation.json``. Interrupted runs resume from ``work``."""
    request_cpu_devices()
    enable_compilation_cache()
    found = {name: measure_case(name, case, work, quiet=quiet) for name, case in cases.items() if name in (only or cases)}
    result = write_result(out, "reincarnation", episodes=EPISODES, cases=found)
    shutil.rmtree(work, ignore_errors=True)
    return result


def measure_case(name: str, case: Case, work: Path, *, quiet: bool) -> dict[str, Any]:
    env, how = PRESETS[case.teacher].env, {"tensorboard": False, "quiet": quiet}
    teacher, shown = trained_teacher(case.teacher, case.teacher_steps, work / case.teacher, EPISODES, how)
    students = {"qdagger": jaxrl.make_qdagger(env, teacher=teacher, **case.student), "dqn": jaxrl.make_dqn(env)}
    found: dict[str, Any] = {"teacher": shown, "teacher_steps": case.teacher_steps}
    for which, student in students.items():
        folder = work / f"{name}-{which}"
        found[which], found["rows"] = returns_of(student, case.total_steps, NUM_SEEDS, folder, EPISODES, how)
    say(f"{name}: teacher {found['teacher']:.1f}, QDagger {np.mean(found['qdagger']):.1f}, DQN {np.mean(found['dqn']):.1f}")
    return found


# --------------------------------------------------------------------------------------------------------------------- figures


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    rows = []
    for name, case in result["cases"].items():
        student = float(np.mean(case["qdagger"]))
        for title, other in (("the teacher", case["teacher"]), ("DQN", float(np.mean(case["dqn"])))):
            rows.append((f"{name}: above {title}", f"> {other:.1f}", f"{student:.1f}", student > other))
    return rows


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def reincarnation_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for name, case in result["cases"].items():
        scores = [
            interval_text(float(np.mean(case[which])), *bootstrap_interval(np.array(case[which]))) for which in ("qdagger", "dqn")
        ]
        about = f"`{CASES[name].teacher}`, {case['teacher_steps']:,} steps"
        rows.append([about, f"{case['teacher']:.1f}", f"{case['rows']:,}", *scores])
    lines = [
        "## Reincarnation",
        origin(result),
        table(["teacher", "its return", "rows of the student", "QDagger", "DQN from nothing"], rows),
        f"QDagger, {NUM_SEEDS} seeds with one teacher each case, beside DQN with the same settings and number of rows. Mean "
        f"return of {result['episodes']:,} greedy episodes of the teacher, and of each student at the end of its training, with "
        "a 95 % bootstrap interval over seeds.",
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)

"""Diagnosis of an installation: versions, devices, writable folders, and whether training works.

JAX is only used in a separate process (``probe``), so that a broken installation is reported and does not crash the command.
"""

from __future__ import annotations

from jaxrl.runtime.doctor.finding import SMOKE, Finding, problems
from jaxrl.runtime.doctor.machine import check_devices, check_folders, check_gpu
from jaxrl.runtime.doctor.packages import check_packages
from jaxrl.runtime.doctor.probe import Answer, ask


def diagnose(*, quick: bool = False) -> list[Finding]:
    """Run all checks; if ``quick``, train one compiled iteration without saving and restoring it."""
    found = list(check_packages())
    if missing := problems(found):
        why = f"skipped, because {' and '.join(sorted(missing))} cannot be used"
        return [*found, *check_folders(), Finding(SMOKE, "training", "note", why)]
    answer = ask("" if quick else "restore")
    found += [check_devices(answer), check_gpu(answer), *check_folders(answer.facts.get("cache"))]
    return [*found, check_training(answer, quick=quick)]


def check_training(answer: Answer, *, quick: bool) -> Finding:
    """Check that one iteration of PPO, compiled as in a run, was trained, and its state saved and restored unless ``quick``."""
    if "platform" not in answer.facts:
        return Finding(SMOKE, "training", "note", "skipped, because there are no devices")
    difference, number = answer.facts.get("difference"), answer.facts.get("used", 1)
    if answer.end is None and difference is None:
        came_back = "" if quick else ", saved and restored bit for bit"
        over = f"{number} device{'s' * (number > 1)}"
        return Finding(SMOKE, "training", "ok", f"one compiled iteration of PPO on CartPole-v1 on {over}{came_back}")
    problem = f"{difference} differs after restoring a checkpoint" if difference else f"it failed: {answer.end}"
    show = "JAXRL_DEBUG=1 jaxrl train ppo --env CartPole-v1 --total-steps 1024 --out jaxrl-smoke"
    return Finding(SMOKE, "training", "problem", problem, "training", show)

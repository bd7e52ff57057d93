"""Diagnosis of an installation: what is missing or broken, its consequences, and the command that fixes it.

Uses only the standard library and ``packaging``. Packages are imported, and JAX is used, in separate processes (``probe``), so
that a broken package is reported and does not crash the command.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterable

from jaxrl.runtime.doctor.finding import PACKAGES, SMOKE, Finding, pip_install, shortened
from jaxrl.runtime.doctor.machine import check_devices, check_folders, check_gpu
from jaxrl.runtime.doctor.packages import check_packages, declared
from jaxrl.runtime.doctor.process import ask

DEVICE_SECONDS, SMOKE_SECONDS = 120.0, 300.0

NEEDED_PACKAGES = {"jax", "jaxlib", "numpy", "flax", "optax", "chex", "gymnasium", "gymnax", "six", "orbax-checkpoint"}
NEEDED = NEEDED_PACKAGES | {"devices", "temporary folder"}
"""Checks that must pass before the smoke test can run."""


def diagnose(*, quick: bool = False, say: Callable[[str], None] = lambda text: None) -> list[Finding]:
    """Run all checks.

    Args:
      quick: train one compiled iteration without saving and restoring it.
      say: called with a description of each step.

    Raises:
      FileNotFoundError: the requirements of jaxrl cannot be found.
    """
    if importlib.util.find_spec("packaging") is None:
        return [Finding(PACKAGES, "packaging", "problem", "not installed", "jaxrl doctor", pip_install("packaging"))]
    asked = declared()
    say("importing every package")
    found = list(check_packages(asked))
    say("asking JAX for devices")
    answer = None if problems(found) & {"jax", "jaxlib", "numpy"} else ask("devices", timeout=DEVICE_SECONDS)
    if answer is not None:
        found += [check_devices(answer), check_gpu(answer, asked.requirements)]
    found += check_folders(answer)
    say("training for one iteration" if quick else "training for one iteration, saving and restoring")
    found.append(check_smoke(problems(found), quick=quick))
    return found


def problems(found: Iterable[Finding]) -> set[str]:
    """Return the names of the checks that found problems."""
    return {finding.check for finding in found if finding.level == "problem"}


def check_smoke(broken: set[str], *, quick: bool) -> Finding:
    """Run one iteration of PPO, compiled as in a run, and save and restore the state unless ``quick``."""
    if hindrances := sorted(broken & NEEDED):
        return Finding(SMOKE, "training", "note", f"skipped, because {', '.join(hindrances)} cannot be used")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="jaxrl-doctor-", ignore_cleanup_errors=True) as folder:
        answer = ask("smoke", *([] if quick else [folder]), timeout=SMOKE_SECONDS)
    difference, number = answer.facts.get("difference"), answer.facts.get("devices", 1)
    if answer.end is None and difference is None:
        seconds = time.perf_counter() - begin
        came_back = "" if quick else ", saved and restored bit for bit"
        over = f"{number} device{'s' if number > 1 else ''}"
        found = f"one compiled iteration of PPO on CartPole-v1 on {over}{came_back}, in {seconds:.0f} s"
        return Finding(SMOKE, "training", "ok", found)
    problem = f"{difference} differs after restoring a checkpoint" if difference else f"it failed: {shortened(answer.end or '')}"
    show = "JAXRL_DEBUG=1 jaxrl train ppo --env CartPole-v1 --total-steps 1024 --out jaxrl-smoke"
    return Finding(SMOKE, "training", "problem", problem, "training", show)

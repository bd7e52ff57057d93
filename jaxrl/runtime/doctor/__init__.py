"""What is missing or broken on this machine, what that breaks, and the command that mends it.

Standard library and ``packaging`` only. Packages are imported, and JAX is used, in processes of their own (``probe``), so that a
broken one is a finding and no crash.
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
"""What the smoke test cannot do without."""


def diagnose(*, quick: bool = False, say: Callable[[str], None] = lambda text: None) -> list[Finding]:
    """Look at everything.

    Args:
      quick: train one compiled iteration, and do not save and restore it.
      say: is called with what is done next.

    Raises:
      FileNotFoundError: nothing says what jaxrl requires.
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
    """What has problems."""
    return {finding.check for finding in found if finding.level == "problem"}


def check_smoke(broken: set[str], *, quick: bool) -> Finding:
    """One iteration of PPO, compiled as a run's are; unless ``quick`` it is saved and restored."""
    if hindrances := sorted(broken & NEEDED):
        return Finding(SMOKE, "training", "note", f"left out until {', '.join(hindrances)} can be used")
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
    what = f"a checkpoint came back with another {difference}" if difference else f"it failed: {shortened(answer.end or '')}"
    show = "JAXRL_DEBUG=1 jaxrl train ppo --env CartPole-v1 --total-steps 1024 --out jaxrl-smoke"
    return Finding(SMOKE, "training", "problem", what, "training", show)

"""Constraint on cost: PPO with a Lagrange multiplier on ``jaxrl:Hazards``, beside the same without a limit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jaxrl
from benchmarks.markdown import Requirement, misses, origin, requirement_table, table
from benchmarks.record import write_result
from benchmarks.scores import bootstrap_interval
from benchmarks.speed import say
from jaxrl.algorithms.presets import interval_text
from jaxrl.options import Lagrangian
from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices

ENV = "jaxrl:Hazards"
LIMIT = 3.0
SETTINGS: dict[str, Any] = {"num_envs": 16, "rollout_length": 128, "num_epochs": 4, "num_minibatches": 8, "ent_coef": 0.0}
TOTAL_STEPS = 1_000_000
SEEDS = range(10, 18)
"""The gains of the controller were chosen with seeds 0 to 4."""
LAST = 0.2
"""Share of the rows, at the end of training, over whose episodes returns and costs are means."""
LIMITS = {"limited": LIMIT, "unlimited": 1e9}
"""Limits on the mean cost of an episode; with the second λ stays 0."""


def measure(out: Path, work: Path, total_steps: int = TOTAL_STEPS, *, quiet: bool = False) -> dict[str, Any]:
    """Train both, and write ``out/constraint.json``. Interrupted runs resume from ``work``."""
    request_cpu_devices()
    enable_compilation_cache()
    found = {}
    for name, limit in LIMITS.items():
        agent = jaxrl.make_ppo(ENV, constraint=Lagrangian(limit=limit), **SETTINGS)
        _, history = jaxrl.run(agent, total_steps, seeds=SEEDS, out=work / name, tensorboard=False, quiet=quiet)
        found[name] = {key: last_mean(history, f"charts/episodic_{key}") for key in ("return", "cost")}
        say(f"{name}: return {np.mean(found[name]['return']):.2f}, cost {np.mean(found[name]['cost']):.2f}")
    result = write_result(out, "constraint", total_steps=total_steps, limit=LIMIT, seeds=[*SEEDS], programs=found)
    shutil.rmtree(work, ignore_errors=True)
    return result


def last_mean(history: Mapping[str, Any], key: str) -> list[float]:
    """Return the mean of each seed over the last rows of training."""
    rows = np.asarray(history["rows"])
    return np.asarray(history[key])[rows > (1 - LAST) * rows[-1]].mean(0).tolist()


# --------------------------------------------------------------------------------------------------------------------- figures


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    limited, unlimited = (result["programs"][name] for name in LIMITS)
    cost, most = float(np.mean(limited["cost"])), 1.05 * result["limit"]
    share = np.mean(limited["return"]) / np.mean(unlimited["return"])
    return [
        ("cost, mean over seeds", f"≤ {most:.2f}", f"{cost:.2f}", cost <= most),
        ("return, of that without a limit", "≥ 90%", f"{share:.1%}", bool(share >= 0.9)),
    ]


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def constraint_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for name, program in result["programs"].items():
        both = [interval_text(float(np.mean(x)), *bootstrap_interval(np.array(x))) for x in (program["return"], program["cost"])]
        rows.append(["none" if name == "unlimited" else f"{result['limit']:g}", *both, f"{max(program['cost']):.2f}"])
    lines = [
        "## Constraint on cost",
        origin(result),
        table(["limit", "return", "cost", "cost of the worst seed"], rows),
        f"PPO on `{ENV}`, {len(result['seeds'])} seeds, {result['total_steps']:,} steps. Means of the training episodes in the "
        f"last {LAST:.0%} of the rows, with a 95 % bootstrap interval over seeds.",
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)

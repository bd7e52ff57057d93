"""Privileged critics: steps until PPO with a memory solves CartPole without velocities, with a critic that sees them or not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jaxrl
from benchmarks.markdown import Requirement, requirement_table, table
from benchmarks.record import write_result
from benchmarks.speed import say
from jaxrl.algorithms.presets import PRESETS
from jaxrl.runtime.logs.records import EVALUATION_RETURN
from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices

ENV = "CartPole-v1|privileged_state(1,3)"
PRESET = PRESETS["ppo-cartpole-hidden"]
CRITICS: dict[str, dict[str, Any]] = {"plain": {}, "privileged": {"critic": "privileged"}}
TOTAL_STEPS = 300_000
EPISODES, SOLVED = 32, 475.0
"""Greedy episodes of an evaluation, and the mean return from which the task counts as solved."""
ASKED = 0.5
"""Largest share of the plain critic's steps."""


def measure(out: Path, work: Path, total_steps: int = TOTAL_STEPS, *, quiet: bool = False) -> dict[str, Any]:
    """Train both, and write ``out/privileged.json``. Interrupted runs resume from ``work``."""
    request_cpu_devices()
    enable_compilation_cache()
    found = {}
    for name, model in CRITICS.items():
        agent = jaxrl.make_ppo(ENV, **{**PRESET.settings, "model": {**PRESET.settings["model"], **model}})
        how: dict[str, Any] = {"tensorboard": False, "quiet": quiet, "eval_every": 1, "eval_episodes": EPISODES}
        _, history = jaxrl.run(agent, total_steps, seeds=PRESET.num_seeds, out=work / name, **how)
        found[name] = steps_to(np.asarray(history["rows"]), np.asarray(history[EVALUATION_RETURN]), SOLVED)
        say(f"{name}: {found[name]}")
    result = write_result(out, "privileged", total_steps=total_steps, solved=SOLVED, steps=found)
    shutil.rmtree(work, ignore_errors=True)
    return result


def steps_to(rows: np.ndarray, returns: np.ndarray, least: float) -> list[int | None]:
    """Return the rows of each seed at its first evaluation with this mean return; None if there is none.

    Args:
      rows: [chunks].
      returns: [chunks, seeds], NaN where none was made.
    """
    reached = returns >= least
    return [int(rows[each.argmax()]) if each.any() else None for each in reached.T]


# --------------------------------------------------------------------------------------------------------------------- figures


def share(result: Mapping[str, Any]) -> float:
    """Return the median of the privileged critic's steps over that of the plain one's; seeds that never solve it count as ∞."""
    medians = [float(np.median([np.inf if x is None else x for x in result["steps"][name]])) for name in ("privileged", "plain")]
    return medians[0] / medians[1]


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    found = share(result)
    return [("steps, of those with a plain critic", f"≤ {ASKED:.0%}", f"{found:.0%}", found <= ASKED)]


def missed(result: Mapping[str, Any]) -> bool:
    """Return whether a requirement is not met."""
    return not all(is_met for *_, is_met in requirements(result))


# ---------------------------------------------------------------------------------------------------------------------- report


def privileged_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for name, steps in result["steps"].items():
        solved = sorted(x for x in steps if x is not None)
        each = [f"{f(solved):,.0f}" for f in (np.median, min, max)] if solved else ["–"] * 3
        rows.append([name, f"{len(solved)} of {len(steps)}", *each])
    lines = [
        "## Privileged critics",
        f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, jax {result['versions']['jax']}",
        table(["critic", "seeds that solve it", "median steps", "fewest", "most"], rows),
        f"PPO with a GRU on `{ENV}`: the policy does not see the velocities, and the *privileged* critic does. Steps until the "
        f"mean return of {EPISODES} greedy episodes is at least {result['solved']:g}, evaluated after each iteration up to "
        f"{result['total_steps']:,} steps; medians over the seeds that solve it.",
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)

"""Privileged critics: steps until PPO with a memory solves CartPole without velocities, with a critic that sees them or not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jaxrl
from benchmarks.markdown import Requirement, misses, origin, requirement_table, table
from benchmarks.record import write_result
from benchmarks.speed import say
from jaxrl.runtime.logs.records import EVALUATION_RETURN
from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices

ENV = "CartPole-v1|privileged_state(1,3)"
CRITICS: dict[str, dict[str, Any]] = {"plain": {}, "privileged": {"critic": "privileged"}}
SIZES = {8: 4, 64: 1}
"""Number of environments -> iterations between evaluations. The first is PPO's default."""
NUM_SEEDS, TOTAL_STEPS = 8, 150_000
EPISODES, SOLVED = 32, 475.0
"""Greedy episodes of an evaluation, and the mean return from which the task counts as solved."""
ASKED = 0.5
"""Largest share of the plain critic's steps, with PPO's default number of environments."""


def measure(out: Path, work: Path, total_steps: int = TOTAL_STEPS, *, quiet: bool = False) -> dict[str, Any]:
    """Train all, and write ``out/privileged.json``. Interrupted runs resume from ``work``."""
    request_cpu_devices()
    enable_compilation_cache()
    found: dict[str, dict[str, Any]] = {}
    for num_envs, every in SIZES.items():
        for name, model in CRITICS.items():
            agent = jaxrl.make_ppo(ENV, num_envs=num_envs, normalize_rewards=True, model={"core": "gru", **model})
            how: dict[str, Any] = {"tensorboard": False, "quiet": quiet, "eval_every": every, "eval_episodes": EPISODES}
            folder = work / f"{name}-{num_envs}"
            _, history = jaxrl.run(agent, total_steps, seeds=NUM_SEEDS, out=folder, **how)
            steps = steps_to(np.asarray(history["rows"]), np.asarray(history[EVALUATION_RETURN]), SOLVED)
            found.setdefault(str(num_envs), {})[name] = steps
            say(f"{num_envs} environments, {name}: {steps}")
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


def share(steps: Mapping[str, Any]) -> float:
    """Return the median of the privileged critic's steps over that of the plain one's; seeds that never solve it count as ∞."""
    medians = [float(np.median([np.inf if x is None else x for x in steps[name]])) for name in ("privileged", "plain")]
    return medians[0] / medians[1]


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    number, steps = next(iter(result["steps"].items()))
    found = share(steps)
    return [(f"{number} environments: steps, of those with a plain critic", f"≤ {ASKED:.0%}", f"{found:.0%}", found <= ASKED)]


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def privileged_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for number, of_critics in result["steps"].items():
        for name, steps in of_critics.items():
            solved = sorted(x for x in steps if x is not None)
            each = [f"{f(solved):,.0f}" for f in (np.median, min, max)] if solved else ["–"] * 3
            ratio = f"{share(of_critics):.0%}" if name == "privileged" else ""
            rows.append([number, name, f"{len(solved)} of {len(steps)}", *each, ratio])
    lines = [
        "## Privileged critics",
        origin(result),
        table(["environments", "critic", "seeds that solve it", "median steps", "fewest", "most", "of the plain"], rows),
        f"PPO with a GRU on `{ENV}`: the policy does not see the velocities, and the *privileged* critic does. Steps until the "
        f"mean return of {EPISODES} greedy episodes is at least {result['solved']:g}, evaluated every 2,048 or 4,096 steps up to "
        f"{result['total_steps']:,}; medians over the seeds that solve it. With many environments there are few updates, and the "
        "policy takes longer than its critic.",
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)

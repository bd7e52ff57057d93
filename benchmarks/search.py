"""Search: trials per hour, lanes that are busy, the cost of rungs and of advice, and populations that train themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.markdown import Requirement, requirement_table, table
from benchmarks.numbers import short
from benchmarks.protocol import WorkerError, clean_environment
from benchmarks.record import write_result
from benchmarks.speed import say

SPACE = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "gamma": {"low": 0.9, "high": 0.9999, "log": "complement"},
    "ent_coef": {"low": 0.0, "high": 0.05},
}
BASE: dict[str, Any] = {"algorithm": "ppo", "env": "CartPole-v1", "total_steps": 100_000, "seeds": 4, "space": SPACE}
RUNGS = [0.1, 0.3, 1.0]
BUDGET, SEARCHED, ASKED = 128, 64, 16
"""Trials of the search that is timed as a whole, of those with and without rungs, and of a batch that is asked for."""
MOST_SECONDS, LEAST_BUSY, LEAST_RATE, MOST_ASK = 120.0, 0.95, 0.9, 1.0
POPULATION: dict[str, Any] = {
    "space": {"learning_rate": {"low": 1e-5, "high": 1e-1, "log": True}},
    "members": 16,
    "ready": 20,
    "populations": 8,
    "total_steps": 200_000,
}
SCORE, LEAST_POPULATIONS, LEAST_POPULATION_RATE = 475.0, 7, 0.9
"""Median of a population's members that must be reached, and by how many populations."""


def search_of(trials: int, method: str = "random", rungs: list[float] | None = None) -> dict[str, Any]:
    return BASE | {"search": {"method": method, "trials": trials, "batch": ASKED, "rungs": rungs or [1.0], "top": 0}}


def measure(repeats: int, scale: float, out: Path) -> dict[str, Any]:
    """Measure each case in new processes with empty caches, and write ``search.json``.

    Args:
      repeats: rounds in which searches with and without rungs, and populations and plain agents, take turns.
      scale: share of the number of trials and of the length of populations, to check that everything works.
    """
    load = machine.load_with_warning()
    few = max(ASKED, round(SEARCHED * scale))
    population = POPULATION | {"total_steps": max(20_000, round(POPULATION["total_steps"] * scale))}
    plain = population | {"members": None, "plain_members": population["members"]}
    result: dict[str, Any] = {"budget": child("search", search_of(max(ASKED, round(BUDGET * scale))))}
    say(f"{result['budget']['trials']} trials in {result['budget']['seconds']:.0f} s")
    result["ask"] = child("ask", search_of(ASKED, "tpe"))
    result |= {"plain": [], "rungs": [], "populations": [], "agents": []}
    for number in range(1, repeats + 1):
        result["plain"].append(child("search", search_of(few)))
        result["rungs"].append(child("search", search_of(2 * few, rungs=RUNGS)))
        result["populations"].append(child("population", population))
        result["agents"].append(child("population", plain))
        say(f"round {number} of {repeats} is done")
    return write_result(out, "search", load=load, scale=scale, **result)


def child(kind: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """Run ``search_side`` in a new process with an empty compilation cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "benchmarks.search_side", kind, json.dumps(case)]
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(Path(cache)))
    if done.returncode:
        raise WorkerError(f"{kind} failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --------------------------------------------------------------------------------------------------------------------- figures


def rate(found: Mapping[str, Any]) -> float:
    """Return the env steps per second of a search, tests included and compilation not."""
    return float(found["env_steps"] / (found["seconds"] - found["compile_seconds"]))


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    budget, ask = result["budget"], median(result["ask"]["seconds"])
    seconds, busy = budget["seconds"], min(found["busy"] for found in result["rungs"])
    ratio = median(rate(a) / rate(b) for a, b in zip(result["rungs"], result["plain"], strict=True))
    passed = min(sum(score >= SCORE for score in found["medians"]) for found in result["populations"])
    speeds = median(a["sps"] / b["sps"] for a, b in zip(result["populations"], result["agents"], strict=True))
    least = LEAST_POPULATION_RATE
    return [
        (f"{budget['trials']} trials with compilation", f"≤ {MOST_SECONDS:.0f} s", f"{seconds:.0f} s", seconds <= MOST_SECONDS),
        ("lanes that are busy, with rungs", f"≥ {LEAST_BUSY:.0%}", f"{busy:.0%}", busy >= LEAST_BUSY),
        ("env steps/s with rungs ÷ without", f"≥ {LEAST_RATE}", f"{ratio:.2f}", ratio >= LEAST_RATE),
        (f"asking for {ASKED} after 1,000 trials", f"≤ {MOST_ASK:.0f} s", f"{ask:.2f} s", ask <= MOST_ASK),
        (f"populations whose median is {SCORE:.0f}", f"≥ {LEAST_POPULATIONS}", f"{passed}", passed >= LEAST_POPULATIONS),
        ("env steps/s of populations ÷ plain agents", f"≥ {least}", f"{speeds:.2f}", speeds >= least),
    ]


def missed(result: Mapping[str, Any]) -> bool:
    """Return whether a requirement is not met."""
    return not all(is_met for *_, is_met in requirements(result))


# ---------------------------------------------------------------------------------------------------------------------- report


def search_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    measured = {"timed as a whole": [result["budget"]], "without rungs": result["plain"], "with rungs": result["rungs"]}
    rows = [[name, *_numbers(found)] for name, founds in measured.items() for found in founds]
    hours = result["budget"]["trials"] / result["budget"]["seconds"] * 3600
    lines = [
        "## Search",
        f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, jax {result['versions']['jax']}",
        table(["PPO on CartPole", "trials", "seconds", "of these compiling", "env steps/s", "busy"], rows),
        f"A trial has {BASE['seeds']} seeds of {BASE['total_steps']:,} steps each: {hours:,.0f} trials an hour. Populations have "
        f"{POPULATION['members']} members with learning rates from four decades, and {POPULATION['total_steps']:,} steps each.",
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)


def _numbers(found: Mapping[str, Any]) -> list[str]:
    times = [f"{found[name]:.0f} s" for name in ("seconds", "compile_seconds")]
    return [f"{found['trials']}", *times, short(rate(found)), f"{found['busy']:.0%}"]

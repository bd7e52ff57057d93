"""Search: trials per hour, lanes that are busy, the cost of rungs and of advice, and populations that train themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.markdown import Requirement, misses, origin, requirement_table, table
from benchmarks.numbers import short
from benchmarks.peer import ZOO
from benchmarks.protocol import WorkerError, clean_environment
from benchmarks.record import write_result
from benchmarks.speed import say
from jaxrl.runtime.system.cores import usable_cores

SPACE = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "gamma": {"low": 0.9, "high": 0.9999, "log": "complement"},
    "ent_coef": {"low": 0.0, "high": 0.05},
}
SETTINGS = {"num_envs": 8, "rollout_length": 128, "num_epochs": 4, "num_minibatches": 4}
"""Sizes of PPO on all sides. The passes are those of the measurements of speed, ``benchmarks.cases``."""
BASE: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "CartPole-v1",
    "total_steps": 100_000,
    "seeds": 4,
    "settings": SETTINGS,
    "space": SPACE,
}
RUNGS = [0.1, 0.3, 1.0]
EPISODES = 32
BUDGET, SEARCHED, ASKED = 128, 64, 16
"""Trials of the search that is timed as a whole, of those with and without rungs, and of a batch that is asked for."""
MOST_SECONDS, LEAST_BUSY, LEAST_RATE, MOST_ASK = 120.0, 0.95, 0.9, 1.0
POPULATION: dict[str, Any] = {
    "space": {"learning_rate": {"low": 1e-5, "high": 1e-1, "log": True}},
    "settings": SETTINGS,
    "members": 16,
    "ready": 20,
    "populations": 8,
    "total_steps": 200_000,
}
PEER_TRIALS, PEER_GENERATIONS = 3, 4
"""Trials of RL Zoo in each process, and generations of Ray Tune's population. The first generation is not timed."""
LEAST_TRIALS_RATIO, LEAST_TUNE_RATIO = 30.0, 20.0
SCORE, LEAST_POPULATIONS, LEAST_POPULATION_RATE = 475.0, 7, 0.9
"""Median of a population's members that must be reached, and by how many populations."""


def search_of(trials: int, method: str = "random", rungs: list[float] | None = None) -> dict[str, Any]:
    """Return the entries of a search. Groups of one trial fit into the cache of a core: PPO is a quarter faster so."""
    options = {"method": method, "trials": trials, "batch": ASKED, "groups": ASKED, "rungs": rungs or [1.0], "top": 0}
    options["eval_episodes"] = EPISODES
    return BASE | {"search": options}


def measure(repeats: int, scale: float, out: Path, *, with_peers: bool = False) -> dict[str, Any]:
    """Measure each case in new processes with empty caches, and write ``search.json``.

    Args:
      repeats: rounds in which searches with and without rungs, and populations and plain agents, take turns.
      scale: share of the number of trials and of the length of populations, to check that everything works.
      with_peers: measure RL Zoo's trials and Ray Tune's population too.
    """
    if with_peers:
        ZOO.install()
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
        result["rungs"].append(child("search", search_of(4 * few, rungs=RUNGS)))  # about as many env steps
        result["populations"].append(child("population", population))
        result["agents"].append(child("population", plain))
        say(f"round {number} of {repeats} is done")
    if with_peers:
        result["population"] = child("population", population | {"populations": 1})
        result["zoo"], result["tune"] = zoo_search(scale), zoo_population(scale)
    return write_result(out, "search", load=load, scale=scale, **result)


PEER = SETTINGS | {"hidden_sizes": [64, 64], "env": BASE["env"]}


def zoo_search(scale: float) -> list[dict[str, Any]]:
    """Run a search by RL Zoo in a process per core, all at once; each has its own study, so none waits for another."""
    case = PEER | {"total_steps": round(BASE["total_steps"] * scale), "trials": PEER_TRIALS}
    say(f"{ZOO.title}: a search of {PEER_TRIALS} trials on each core")
    with ThreadPoolExecutor(usable_cores()) as pool:
        seeds = range(usable_cores())
        return [*pool.map(lambda seed: child("search", case | {"seed": seed}, "benchmarks.zoo_peer", ZOO.python), seeds)]


def zoo_population(scale: float) -> dict[str, Any]:
    """Train one population by Ray Tune."""
    case = PEER | {"members": POPULATION["members"], "cores": usable_cores(), "generations": PEER_GENERATIONS}
    case["generation_steps"] = round(POPULATION["ready"] * case["num_envs"] * case["rollout_length"] * scale)
    say(f"{ZOO.title}: a population of {case['members']} members, {PEER_GENERATIONS} generations")
    return child("population", case, "benchmarks.zoo_peer", ZOO.python)


def child(
    kind: str, case: Mapping[str, Any], module: str = "benchmarks.search_side", python: Path = Path(sys.executable)
) -> dict[str, Any]:
    """Run one side in a new process with an empty compilation cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [str(python), "-m", module, kind, json.dumps(case)]
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
        *peer_requirements(result),
        (f"{budget['trials']} trials with compilation", f"≤ {MOST_SECONDS:.0f} s", f"{seconds:.0f} s", seconds <= MOST_SECONDS),
        ("lanes that are busy, with rungs", f"≥ {LEAST_BUSY:.0%}", f"{busy:.0%}", busy >= LEAST_BUSY),
        ("env steps/s with rungs ÷ without", f"≥ {LEAST_RATE}", f"{ratio:.2f}", ratio >= LEAST_RATE),
        (f"asking for {ASKED} after 1,000 trials", f"≤ {MOST_ASK:.0f} s", f"{ask:.2f} s", ask <= MOST_ASK),
        (f"populations whose median is {SCORE:.0f}", f"≥ {LEAST_POPULATIONS}", f"{passed}", passed >= LEAST_POPULATIONS),
        ("env steps/s of populations ÷ plain agents", f"≥ {least}", f"{speeds:.2f}", speeds >= least),
    ]


def peer_requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required beside the peers; nothing if they were not measured."""
    if "zoo" not in result:
        return []
    same = sum(map(trials_per_hour, result["zoo"])) / BASE["seeds"]  # trials with as many env steps
    trials = trials_per_hour(result["budget"]) / same
    speed = result["population"]["sps"] / (result["tune"]["env_steps"] / result["tune"]["seconds"])
    return [
        (
            "trials per hour ÷ RL Zoo's, of equal env steps",
            f"≥ {LEAST_TRIALS_RATIO:.0f}",
            f"{trials:.0f}",
            trials >= LEAST_TRIALS_RATIO,
        ),
        ("env steps/s of a population ÷ Ray Tune's", f"≥ {LEAST_TUNE_RATIO:.0f}", f"{speed:.0f}", speed >= LEAST_TUNE_RATIO),
    ]


def trials_per_hour(found: Mapping[str, Any]) -> float:
    return float(found["trials"] / found["seconds"] * 3600)


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def search_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    measured = {"timed as a whole": [result["budget"]], "without rungs": result["plain"], "with rungs": result["rungs"]}
    rows = [[name, *_numbers(found)] for name, founds in measured.items() for found in founds]
    trials = trials_per_hour(result["budget"])
    lines = [
        "## Search",
        origin(result),
        table(["PPO on CartPole", "trials", "seconds", "of these compiling", "env steps/s", "busy"], rows),
        f"A trial has {BASE['seeds']} seeds of {BASE['total_steps']:,} steps each: {trials:,.0f} trials an hour. "
        f"A population has {POPULATION['members']} members with learning rates from four decades, and "
        f"{POPULATION['total_steps']:,} steps for each.",
        *_peers_in_words(result),
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)


def _peers_in_words(result: Mapping[str, Any]) -> list[str]:
    if "zoo" not in result:
        return []
    versions, tune, trials = result["tune"]["versions"], result["tune"], sum(map(trials_per_hour, result["zoo"]))
    return [
        f"RL Zoo {versions['rl_zoo3']}, one seed a trial, a process per core, PPO of the same sizes: {trials:,.0f} trials an "
        f"hour, start-up not counted. Ray Tune {versions['ray']}, a process per member with the same PPO: "
        f"{short(tune['env_steps'] / tune['seconds'])} env steps/s; one population here: {short(result['population']['sps'])}."
    ]


def _numbers(found: Mapping[str, Any]) -> list[str]:
    times = [f"{found[name]:.0f} s" for name in ("seconds", "compile_seconds")]
    return [f"{found['trials']}", *times, short(rate(found)), f"{found['busy']:.0%}"]

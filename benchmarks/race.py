"""Seconds from the first line of a program to a score, compilation included: jaxrl, Rejax, SBX and Stable-Baselines3, in turn."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.markdown import table
from benchmarks.numbers import short, with_range
from benchmarks.peer import PEERS, SB3
from benchmarks.protocol import Worker, clean_environment
from benchmarks.race_cases import EPISODES, EVALUATIONS, RACES, Race
from benchmarks.record import write_result
from benchmarks.speed import OURS, say

RIVALS = {peer.name: peer for peer in (PEERS["rejax"], PEERS["sbx"], SB3)}
TITLES = {OURS: "jaxrl"} | {name: peer.title for name, peer in RIVALS.items()}


def measure(repeats: int, out: Path, without_peer: Collection[str] | None = None, only: Sequence[str] = ()) -> dict[str, Any]:
    """Run all races on other seeds in each round, and write ``race.json`` after each race.

    Args:
      without_peer: peers to leave out; empty: all of them.
      only: names of races; empty: all.
    """
    left_out = {*RIVALS} if without_peer is not None and not without_peer else {*(without_peer or ())}
    load, result, measured = machine.load_with_warning(), dict[str, Any](), list[dict[str, Any]]()
    for race in RACES:
        if only and race.name not in only:
            continue
        sides = {side: how for side, how in race.sides.items() if side not in left_out}
        for side in sides.keys() - {OURS}:
            RIVALS[side].install()
        measured.append(run_race(race._replace(sides=sides), repeats))
        result = write_result(out, "race", load=load, races=measured)
    return result


def run_race(race: Race, repeats: int) -> dict[str, Any]:
    """Run a race ``repeats`` times, each side in turn."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in race.sides}
    for number in range(repeats):
        for side, runs in found.items():
            runs.append(run_once(race, side, first_seed=1000 * number))
            say(f"{race.title}, round {number + 1}: {TITLES[side]} {runs[-1]['seconds']:.1f} s")
    about = {"name": race.name, "title": race.title, "score": race.score, "num_seeds": race.num_seeds, "settings": race.sides}
    return about | {"runs": found}


def run_once(race: Race, side: str, first_seed: int) -> dict[str, Any]:
    """Run one side in a new process with an empty compilation cache."""
    rival = RIVALS.get(side)
    python = sys.executable if rival is None else str(rival.python)
    module = "race_side" if rival is None else f"{rival.lives_with or rival.name}_race"
    how = {"score": race.score, "total_steps": race.total_steps, "num_seeds": race.num_seeds, "first_seed": first_seed}
    with tempfile.TemporaryDirectory() as folder:
        variables = clean_environment(Path(folder) / "xla") | {"JAXRL_CACHE_DIR": f"{folder}/jaxrl"}
        with Worker([python, "-m", f"benchmarks.{module}"], variables) as worker:
            return worker.ask("race", how=race.sides[side], **how)


# ---------------------------------------------------------------------------------------------------------------------- report


def race_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = [
        [race["title"] if side == OURS else "", TITLES[side], *cells(race, runs)]
        for race in result["races"]
        for side, runs in race["runs"].items()
    ]
    versions, hardware = result["versions"], result["hardware"]
    lines = [
        "## Races to a score",
        f"* `{result['command']}`, {result['date']}\n* {hardware['cpu']}, {hardware['cores']} cores, load before: "
        f"{result['load']}, jax {versions['jax']}",
        table(["score", "program", "seconds", "steps per seed", "runs that reach it"], rows),
        f"Seconds from the builder to the first of at most {EVALUATIONS} evaluations ({EPISODES} greedy episodes per seed) that "
        "reaches the score, compilation included, imports not: medians (minimum–maximum) over the runs that reach it, each in a "
        "new process on other seeds. jaxrl has the settings of its presets, Rejax those of its configuration files (on Breakout "
        "those of jaxrl's preset), SBX and Stable-Baselines3 (in torch) those of RL Zoo. Rejax cannot stop early: of its run "
        "only the share until the score counts.",
    ]
    return "\n\n".join(lines)


def cells(race: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    won = [run for run in runs if run["reached"] >= race["score"]]
    if not won:
        return ["–", "–", f"0 of {len(runs)}"]
    seconds = with_range([run["seconds"] for run in won], "{:.1f}".format)
    return [seconds, short(median(run["steps"] for run in won)), f"{len(won)} of {len(runs)}"]

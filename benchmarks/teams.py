"""Speed with several agents: environment steps per second of IPPO and QMIX, compared with JaxMARL's own scripts, in turn.

Both sides play JaxMARL's environment, with networks and batches of the same sizes. jaxrl runs as in ``jaxrl.run``. JaxMARL runs
as in its scripts, all seeds in ``jit(vmap(train))`` on JAX's default device, which may use all cores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.clones import JAXMARL
from benchmarks.markdown import Requirement, misses
from benchmarks.peer import TEAMS
from benchmarks.record import write_result
from benchmarks.team_cases import ENV, TITLES, Case, cases
from benchmarks.turns import OURS, heading, limits, ratios, sides_table, started, time_in_turns

PEER, STEPS = "JaxMARL", "env_steps"
SECONDS = 4.0
"""Length of a timed section."""
ASKED = {1: 1.3, 8: 2.0}
"""Number of seeds -> required ratio of steps per second to JaxMARL's."""


def measure(
    repeats: int, scale: float, out: Path, clone: Path | None = None, only: Sequence[str] = (), updates: int = 0
) -> dict[str, Any]:
    """Measure both sides of all cases, and write ``teams.json`` after each case.

    Args:
      scale: share of a section's length, to check that everything works.
      clone: clone of JaxMARL. None: it is left out.
      only: algorithms; empty: all.
      updates: iterations of a call; 0: those of the cases.
    """
    if clone is not None:
        clone = JAXMARL.files_of(clone).parent.resolve()
        TEAMS.install()
    load, peer = machine.load_with_warning(), None if clone is None else JAXMARL.commit
    measured = list[dict[str, Any]]()
    for case in cases(tuple(only) or tuple(TITLES)):
        measured.append(measure_case(case._replace(updates=updates), repeats, SECONDS * scale, clone))
        result = write_result(out, "teams", load=load, scale=scale, peer=peer, cases=measured)
    return result


def command_of(side: str, case: Case, clone: Path | None) -> list[str]:
    case_json = json.dumps(case._asdict())
    if side == OURS:
        return [sys.executable, "-m", "benchmarks.team_side", case_json]
    return [str(TEAMS.python), "-m", "benchmarks.jaxmarl_peer", case_json, str(clone)]


def measure_case(case: Case, repeats: int, seconds: float, clone: Path | None) -> dict[str, Any]:
    """Compile both sides, each in a new process with an empty cache, and then run sections in turn."""
    commands = {side: command_of(side, case, clone) for side in [OURS, *([PEER] if clone else [])]}
    with started(case.title, commands) as (workers, programs):
        time_in_turns(case.title, workers, programs, repeats, seconds, STEPS)
    return {"case": case._asdict(), "title": case.title, "programs": programs}


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    rows = []
    for measured in result["cases"]:
        if (found := ratios(measured["programs"], STEPS)) is not None:
            ratio, asked = median(found), ASKED[measured["case"]["num_seeds"]]
            rows.append((f"steps/s of JaxMARL's: {measured['title']}", f"≥ {asked:g}×", f"{ratio:.2f}×", ratio >= asked))
    return rows


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def teams_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    text = (
        f"Steps of environments per second of all seeds together, on JaxMARL's {ENV} with three agents: medians "
        "(minimum–maximum) over sections in which both take turns. Batches and networks have the same sizes. *jaxrl*: as in "
        "`jaxrl.run`. *JaxMARL*: its scripts' `jit(vmap(train))`, without evaluations. *parameters*: those of a seed's networks."
    )
    measured = sides_table(result["cases"], STEPS, "steps/s")
    return "\n\n".join(
        [*heading("Several agents", result), measured, text, *limits(result, PEER, JAXMARL.option, requirements(result))]
    )

"""Speed of self-play: moves per second of AlphaZero in Connect Four, compared with pgx's own example, in turn.

Both sides search with mctx, with the same options, sizes and networks; each plays its own library's game. jaxrl runs as in
``jaxrl.run`` with a device per core, and one small update per iteration. pgx's example runs its function ``selfplay`` alone: on
JAX's default device, and on one device per core, over which it divides its games.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.clones import PGX
from benchmarks.markdown import Requirement, misses
from benchmarks.numbers import paired
from benchmarks.peer import SELF_PLAY
from benchmarks.record import write_result
from benchmarks.self_play_cases import GAMES, MOVES, SIMULATIONS, TITLES, Case
from benchmarks.turns import OURS, heading, limits, rates, sides_table, started, time_in_turns
from jaxrl.runtime.system.cores import usable_cores

PEER, SHARED, UNIT = "pgx's example", "pgx's example, a device per core", "moves"
SECONDS = 4.0
"""Length of a timed section."""
ASKED = 1.2
"""Required ratio of moves per second to the example's, as it is, and with a device for each core."""


def measure(repeats: int, scale: float, out: Path, clone: Path | None = None) -> dict[str, Any]:
    """Measure all sides of all cases, and write ``self_play.json`` after each case.

    Args:
      scale: share of a section's length, to check that everything works.
      clone: clone of pgx. None: it is left out.
    """
    if clone is not None:
        clone = PGX.files_of(clone).parent.parent.resolve()
        SELF_PLAY.install()
    load, peer = machine.load_with_warning(), None if clone is None else PGX.commit
    measured = list[dict[str, Any]]()
    for case in map(Case, TITLES):
        measured.append(measure_case(case, repeats, SECONDS * scale, clone))
        result = write_result(out, "self_play", "mctx", load=load, scale=scale, peer=peer, cases=measured)
    return result


def command_of(side: str, case: Case, clone: Path | None) -> list[str]:
    case_json = json.dumps(case._asdict())
    if side == OURS:
        return [sys.executable, "-m", "benchmarks.self_play_side", case_json]
    devices = ["env", f"JAX_NUM_CPU_DEVICES={usable_cores()}"] if side == SHARED else []
    return [*devices, str(SELF_PLAY.python), "-m", "benchmarks.pgx_peer", case_json, str(clone)]


def measure_case(case: Case, repeats: int, seconds: float, clone: Path | None) -> dict[str, Any]:
    """Compile all sides, each in a new process with an empty cache, and then run sections in turn."""
    commands = {side: command_of(side, case, clone) for side in [OURS, *([PEER, SHARED] if clone else [])]}
    with started(case.title, commands) as (workers, programs):
        time_in_turns(case.title, workers, programs, repeats, seconds, UNIT)
    return {"case": case._asdict(), "title": case.title, "programs": programs}


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    rows = []
    for measured in result["cases"]:
        own = rates(measured["programs"][OURS], UNIT)
        for side in (PEER, SHARED):
            if side in measured["programs"]:
                ratio = median(paired(own, rates(measured["programs"][side], UNIT)))
                rows.append((f"moves/s of {side}: {measured['title']}", f"≥ {ASKED:g}×", f"{ratio:.2f}×", ratio >= ASKED))
    return rows


missed = misses(requirements)


def self_play_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    text = (
        f"Moves per second of self-play in Connect Four, {GAMES} games side by side, {SIMULATIONS} simulations a move: medians "
        f"(minimum–maximum) over sections in which all take turns. *jaxrl*: as in `jaxrl.run` with a device per core, and an "
        f"update per {MOVES} moves of each game. *pgx's example*: its function `selfplay`, without learning. Networks are the "
        "same."
    )
    measured = sides_table(result["cases"], UNIT, "moves/s")
    return "\n\n".join([*heading("Self-play", result), measured, text, *limits(result, PEER, PGX.option, requirements(result))])

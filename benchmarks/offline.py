"""Speed of offline learning: updates per second of IQL, TD3+BC and CQL, compared with JAX-CORL's own functions, in turn.

Each side learns from the same random rows, with networks and batches of the same sizes. jaxrl runs as in ``jaxrl.run``. JAX-CORL
runs in its scripts' loop of ``update_n_times``, eight updates per call, on JAX's default device, which may use all cores. Its
seeds train one after another, or in a ``vmap`` that it does not have itself, whichever is faster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.clones import JAX_CORL
from benchmarks.markdown import Requirement, misses, table
from benchmarks.offline_cases import BUILDERS, Case, cases
from benchmarks.peer import CORL
from benchmarks.record import write_result
from benchmarks.turns import OURS, heading, limits, ratios, sides_table, started, time_in_turns

PEER, VMAPPED, UPDATES = "JAX-CORL", "JAX-CORL, vmapped", "updates"
SECONDS = 3.0
"""Length of a timed section."""
ASKED = {1: 1.2, 8: 2.0}
"""Number of seeds -> required ratio of updates per second to JAX-CORL's."""


def measure(repeats: int, scale: float, out: Path, clone: Path | None = None, only: Sequence[str] = ()) -> dict[str, Any]:
    """Measure all sides of all cases, and write ``offline.json`` after each case.

    Args:
      scale: share of a section's length, to check that everything works.
      clone: clone of JAX-CORL. None: it is left out.
      only: algorithms; empty: all.
    """
    algorithms = tuple(only) or tuple(BUILDERS)
    if clone is not None:
        clone = JAX_CORL.files_of(clone).parent.resolve()
        CORL.install()
    load, peer = machine.load_with_warning(), None if clone is None else JAX_CORL.commit
    measured = list[dict[str, Any]]()
    for case in cases(algorithms):
        measured.append(measure_case(case, repeats, SECONDS * scale, clone))
        result = write_result(out, "offline", load=load, scale=scale, peer=peer, cases=measured)
    return result


def sides_of(case: Case, clone: Path | None) -> list[str]:
    return [OURS, *([PEER] if clone else []), *([VMAPPED] if clone and case.num_seeds > 1 else [])]


def command_of(side: str, case: Case, clone: Path | None) -> list[str]:
    case_json = json.dumps(case._asdict())
    if side == OURS:
        return [sys.executable, "-m", "benchmarks.offline_side", case_json]
    return [str(CORL.python), "-m", "benchmarks.corl_peer", case_json, str(clone), "vmapped" if side == VMAPPED else "in turn"]


def measure_case(case: Case, repeats: int, seconds: float, clone: Path | None) -> dict[str, Any]:
    """Compile all sides, each in a new process with an empty cache, and then run sections in turn."""
    commands = {side: command_of(side, case, clone) for side in sides_of(case, clone)}
    with started(case.title, commands) as (workers, programs):
        time_in_turns(case.title, workers, programs, repeats, seconds, UPDATES)
        memory = workers[OURS].ask("memory") if case.num_seeds > 1 else None
    return {"case": case._asdict(), "title": case.title, "programs": programs, "memory": memory}


# --------------------------------------------------------------------------------------------------------------------- figures


def seed_bytes(memory: Mapping[str, Any], seeds: int) -> float:
    """Return the bytes that each further seed holds between iterations."""
    return (memory["all"]["held"] - memory["one"]["held"]) / (seeds - 1)


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    rows = []
    for measured in result["cases"]:
        seeds, title = measured["case"]["num_seeds"], measured["title"]
        if (found := ratios(measured["programs"], UPDATES)) is not None:
            ratio, asked = median(found), ASKED[seeds]
            rows.append((f"updates/s of JAX-CORL's: {title}", f"≥ {asked:g}×", f"{ratio:.2f}×", ratio >= asked))
        if memory := measured["memory"]:
            more, allowed = memory["all"]["held"] - memory["one"]["held"], seeds * memory["state"]
            name = f"memory of {seeds} seeds above one seed's: {title}"
            rows.append((name, f"≤ {kib(allowed)}, {seeds} states", kib(more), more <= allowed))
    return rows


def kib(number: float) -> str:
    return f"{number / 1024:,.0f} KiB"


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def offline_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [
        *heading("Offline learning", result),
        sides_table(result["cases"], UPDATES, "updates/s"),
        "Gradient steps per second of all seeds together: medians (minimum–maximum) over sections in which all sides take turns. "
        "Rows, batches of 256 and networks are the same. *jaxrl*: as in `jaxrl.run`. *JAX-CORL*: its scripts' loop of "
        "`update_n_times`, one seed after another; *vmapped*: all seeds in a `jax.vmap` of that function. The requirement is for "
        "the faster of the two. *compile*: all of jaxrl's programs, or `update_n_times` alone. *parameters*: those of a seed's "
        "networks.",
    ]
    if with_memory := [measured for measured in result["cases"] if measured["memory"]]:
        lines += [memory_table(with_memory), MEMORY]
    return "\n\n".join([*lines, *limits(result, PEER, JAX_CORL.option, requirements(result))])


MEMORY = (
    "Memory of jaxrl's program on one device, as planned by XLA. *a state*: parameters, target parameters and the optimisers' "
    "moments. *held*: the dataset and the states. *each further seed*: what it adds to that; a copy of the dataset would show "
    "here. *temporary*: mostly the batches of an iteration, which are drawn at once for each seed."
)


def memory_table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for measured in results:
        memory, seeds = measured["memory"], measured["case"]["num_seeds"]
        held = [memory["data"], memory["state"], memory["one"]["held"], memory["all"]["held"], seed_bytes(memory, seeds)]
        temporary = " → ".join(kib(memory[which]["temporary"]) for which in ("one", "all"))
        rows.append([measured["title"], *map(kib, held), temporary])
    header = ["case", "dataset", "a state", "held by one seed", "by all seeds", "each further seed", "temporary, one → all"]
    return table(header, rows)

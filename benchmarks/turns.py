"""Sections of workers in turn, A B A B …, and the rates and ratios that follow."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.markdown import Requirement, requirement_table, table
from benchmarks.numbers import paired, short, with_range
from benchmarks.pauses import PauseWatch
from benchmarks.protocol import Worker, clean_environment
from benchmarks.speed import say

OURS = "jaxrl"
"""Name of jaxrl's side."""


@contextmanager
def started(title: str, commands: Mapping[str, Sequence[str]]) -> Iterator[tuple[dict[str, Worker], dict[str, dict[str, Any]]]]:
    """Start the worker of each side, with an empty compilation cache, and compile one after the other.

    Gives the workers, and what their command ``compile`` returned, by side. The workers end with the context.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers, programs = dict[str, Worker](), dict[str, dict[str, Any]]()
        for number, (side, command) in enumerate(commands.items()):
            workers[side] = stack.enter_context(Worker(command, clean_environment(Path(folder) / str(number))))
            programs[side] = workers[side].ask("compile")
            say(f"{title}: {side} compiles in {programs[side]['compile_seconds']:.1f} s")
        yield workers, programs


def time_in_turns(
    title: str, workers: Mapping[str, Any], programs: Mapping[str, dict[str, Any]], repeats: int, seconds: float, unit: str
) -> None:
    """Run sections of about ``seconds`` on all sides, and append them to ``programs[side]["sections"]``.

    Args:
      workers: side -> worker, whose command ``train(calls)`` returns ``seconds`` and the number of ``unit`` done.
      unit: what is counted, "updates" or "env_steps".
    """
    watch = PauseWatch().start()
    calls = {side: calls_in(worker, seconds) for side, worker in workers.items()}  # warms up, too
    for number in range(1, repeats + 1):
        for side, worker in workers.items():
            label = f"round {number} of {repeats}: {title}: {side}"
            section = watch.undisturbed(functools.partial(worker.ask, "train", calls=calls[side]), label)
            programs[side].setdefault("sections", []).append(section)
            say(f"{label} {section[unit] / section['seconds']:,.0f} {unit.replace('_', ' ')}/s")


def calls_in(worker: Any, seconds: float) -> int:
    """Return how many calls a section of this length has."""
    calls = 1
    while (took := worker.ask("train", calls=calls)["seconds"]) < seconds / 10:
        calls *= 2
    return max(1, round(calls * seconds / took))


def rates(program: Mapping[str, Any], unit: str) -> list[float]:
    """Return the number of ``unit`` per second, over all seeds, of each section."""
    return [section[unit] / section["seconds"] for section in program["sections"]]


def ratios(programs: Mapping[str, Any], unit: str) -> list[float] | None:
    """Return jaxrl's rate over that of the fastest other side, in each round; None without another."""
    others = [rates(program, unit) for side, program in programs.items() if side != OURS]
    return paired(rates(programs[OURS], unit), max(others, key=median)) if others else None


# ---------------------------------------------------------------------------------------------------------------------- report


def heading(title: str, result: Mapping[str, Any]) -> list[str]:
    """Return the title, and how, where and with which versions the cases were measured."""
    hardware, versions = result["hardware"], dict[str, str]()
    for program in (program for measured in result["cases"] for program in measured["programs"].values()):
        versions |= program["versions"]
    return [
        f"## {title}",
        f"* `{result['command']}`, {result['date']}\n"
        f"* {hardware['cpu']}, {hardware['cores']} cores, load before: {result['load']}\n"
        f"* {', '.join(f'{name} {text}' for name, text in versions.items())}",
    ]


def sides_table(cases: Sequence[Mapping[str, Any]], unit: str, label: str) -> str:
    """Return a table of all sides of all cases.

    Args:
      label: heading of the rates.
    """
    header = ["case", "program", label, "jaxrl / this", "compile, s", "parameters"]
    return table(header, [row for measured in cases for row in _rows(measured, unit)])


def _rows(measured: Mapping[str, Any], unit: str) -> list[list[str]]:
    ours, rows = rates(measured["programs"][OURS], unit), []
    for side, program in measured["programs"].items():
        found = rates(program, unit)
        ratio = "–" if side == OURS else with_range(paired(ours, found))
        sizes = [f"{program['compile_seconds']:.1f}", f"{program['parameters']:,}"]
        rows.append([measured["title"] if side == OURS else "", side, with_range(found, short), ratio, *sizes])
    return rows


def limits(result: Mapping[str, Any], peer: str, option: str, requirements: Sequence[Requirement]) -> list[str]:
    """Return what was left out or shortened, and the requirements with what was measured.

    Args:
      option: the option that measures the peer.
    """
    lines = [f"{peer} was not measured (`{option}`)."] if result["peer"] is None else []
    if result["scale"] != 1:
        lines.append(f"Sections were shortened to {result['scale']:g} of their length, so these are not speeds.")
    return [*lines, *([requirement_table(requirements)] if requirements else [])]

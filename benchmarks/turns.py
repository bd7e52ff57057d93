"""Sections of workers in turn, A B A B …, and the rates and ratios that follow."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.numbers import paired
from benchmarks.pauses import PauseWatch
from benchmarks.speed import say

OURS = "jaxrl"
"""Name of jaxrl's side."""


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
    """Return jaxrl's rate over that of the fastest other side, in each round; None if there is no other."""
    others = [rates(program, unit) for side, program in programs.items() if side != OURS]
    return paired(rates(programs[OURS], unit), max(others, key=median)) if others else None

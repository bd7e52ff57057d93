"""Statistics of measurements and their formatting. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median, stdev
from typing import Any, NamedTuple

Program = Mapping[str, Any]
"""Measurements of one side of a case."""


class Spread(NamedTuple):
    middle: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Return the median, the minimum and the maximum."""
    listed = list(values)
    return Spread(median(listed), min(listed), max(listed))


def rates(program: Program) -> list[float]:
    """Return the environment steps per second of each timed section."""
    return [section["env_steps"] / section["seconds"] for section in program["sections"]]


def paired(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratios of measurements of the same round."""
    return [a / b for a, b in zip(above, below, strict=False)]


def peak(program: Program) -> float:
    return max(section["peak_bytes"] for section in program["sections"])


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; NaN for a single value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def return_difference(programs: Mapping[str, Program], side: str = "rejax") -> tuple[float, float]:
    """Return jaxrl's mean return minus another side's, and the standard error of the difference."""
    ours, theirs = (programs[name]["returns"] for name in ("jaxrl", side))
    return mean(ours) - mean(theirs), math.hypot(standard_error(ours), standard_error(theirs))


def short(x: float) -> str:
    """Format with three significant digits: 652k, 9.02k, 1.3M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{float(f'{x / size:.3g}'):g}{unit}"
    return f"{x:.3g}"


def with_range(values: Iterable[float], show: Callable[[float], str] = "{:.2f}".format) -> str:
    middle, low, high = spread(values)
    return f"{show(middle)} ({show(low)}–{show(high)})"


def with_error(value: float, error: float, sign: str = "") -> str:
    return f"{value:{sign}.1f}" + ("" if math.isnan(error) else f" ± {error:.1f}")

"""How long an iteration takes on n devices: a model of a few numbers, and its arithmetic. Standard library only.

    seconds(n) = fixed + per_row · rows(n) + Σ over all-reduces of (hops(n) · hop + 2 (n − 1) / n · bytes / bandwidth)

``rows(n)`` is a device's share: all rows over n where the batch is given (strong scaling); where each device brings its own it is
the same however many there are (weak scaling). See docs/scaling.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

HOPS = {"ring": lambda n: 2 * (n - 1), "tree": lambda n: 2 * math.ceil(math.log2(n))}
"""Messages that follow each other in an all-reduce: once around the ring to sum up and once to tell, or up a tree and down."""


class Link(NamedTuple):
    """What devices talk through."""

    hop: float
    """Seconds until a message of no length has arrived."""
    bandwidth: float
    """Bytes per second, of one device to the next."""
    hops: str = "ring"
    """A key of ``HOPS``."""


class Level(NamedTuple):
    """So many devices, or so many groups of them, on one kind of link."""

    size: int
    link: Link


class Work(NamedTuple):
    """An iteration of one seed."""

    fixed: float
    """Seconds that are the same however few rows a device has."""
    per_row: float
    """Seconds, on one device."""
    rows: int
    """On one device that has them all (strong scaling), or on each (weak scaling)."""
    all_reduces: tuple[tuple[int, int], ...]
    """(bytes, how many of them)."""


class Prediction(NamedTuple):
    devices: int
    compute: float
    """Seconds."""
    reducing: float
    """Seconds, in all-reduces."""
    efficiency: float
    """Rows per second and device, over those of one device."""

    @property
    def seconds(self) -> float:
        return self.compute + self.reducing


def all_reduce(num_bytes: float, levels: Sequence[Level]) -> float:
    """Seconds. Level by level, as within hosts and then between them: a host sends and receives a sum of its devices, once."""
    seconds = 0.0
    for size, link in levels:
        if size > 1:
            seconds += HOPS[link.hops](size) * link.hop + 2 * (size - 1) / size * num_bytes / link.bandwidth
    return seconds


def predict(work: Work, levels: Sequence[Level], *, weak: bool) -> Prediction:
    """An iteration of one seed on all devices of some levels, the innermost first."""
    devices = math.prod(level.size for level in levels)
    reducing = sum(times * all_reduce(num_bytes, levels) for num_bytes, times in work.all_reduces) if devices > 1 else 0.0
    compute = work.fixed + work.per_row * (work.rows if weak else work.rows / devices)
    one = work.fixed + work.per_row * work.rows
    return Prediction(devices, compute, reducing, one / (compute + reducing) / (1 if weak else devices))


def of_devices(number: int, inner: Level, outer: Link) -> list[Level]:
    """Levels of so many devices, on hosts of ``inner.size`` each, or on one that they do not fill.

    Raises:
      ValueError: they fill some hosts, and not the last one.
    """
    if number <= inner.size:
        return [inner._replace(size=number)]
    if number % inner.size:
        raise ValueError(f"{number} devices do not fill hosts of {inner.size}")
    return [inner, Level(number // inner.size, outer)]


def work_of(whole: float, half: float, rows: int, all_reduces: Iterable[Sequence[int]]) -> Work:
    """From the seconds of an iteration of all rows, and of one of half of them, on one device."""
    per_row = min((whole - half) / (rows / 2), whole / rows)  # nothing is fixed where half of the rows take less than half
    sizes = tuple((num_bytes, times) for num_bytes, times in all_reduces)
    return Work(whole - per_row * rows, per_row, rows, sizes)


def fit(points: Sequence[tuple[float, float]], size: int, hops: str = "ring") -> Link:
    """The link of ``size`` devices whose all-reduces took so long, (bytes, seconds): the least squares of relative errors.

    Raises:
      ValueError: fewer than two sizes.
    """
    if len({num_bytes for num_bytes, _ in points}) < 2:
        raise ValueError("a fit needs all-reduces of two sizes at least")
    # seconds ≈ a + b · bytes, so a / seconds + b · bytes / seconds ≈ 1
    rows = [(1 / seconds, num_bytes / seconds) for num_bytes, seconds in points]
    aa, ab, bb = sum(x * x for x, _ in rows), sum(x * y for x, y in rows), sum(y * y for _, y in rows)
    a1, b1 = sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = aa * bb - ab * ab
    latency, slope = (bb * a1 - ab * b1) / determinant, (aa * b1 - ab * a1) / determinant
    if latency < 0:
        latency, slope = 0.0, b1 / bb
    if slope <= 0:
        latency, slope = a1 / aa, 0.0
    bandwidth = 2 * (size - 1) / size / slope if slope else math.inf
    return Link(latency / HOPS[hops](size), bandwidth, hops)


def slowest_of(number: int, variation: float) -> float:
    """By how much the slowest of so many is expected to be slower than one, where times vary by a share, as a normal deviation:
    at most (E[max] ≤ σ √(2 ln n))."""
    return 1 + variation * math.sqrt(2 * math.log(number))

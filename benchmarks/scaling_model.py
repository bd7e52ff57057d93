"""Model of an iteration's time on n devices, with few parameters. Standard library only.

    seconds(n) = fixed + per_row · rows(n) + Σ over all-reduces of (hops(n) · hop + 2 (n − 1) / n · bytes / bandwidth)

``rows(n)`` are the rows of a device. With a fixed batch these are all rows over n (strong scaling). With a fixed batch per device
they are constant (weak scaling). See docs/scaling.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

HOPS = {"ring": lambda n: 2 * (n - 1), "tree": lambda n: 2 * math.ceil(math.log2(n))}
"""Successive messages in an all-reduce: around the ring once to sum and once to distribute, or up a tree and down."""


class Link(NamedTuple):
    """A connection between devices."""

    hop: float
    """Seconds until an empty message arrives."""
    bandwidth: float
    """Bytes per second from one device to the next."""
    hops: str = "ring"
    """A key of ``HOPS``."""


class Level(NamedTuple):
    """A number of devices, or of groups of devices, on one kind of link."""

    size: int
    link: Link


class Work(NamedTuple):
    """An iteration of one seed."""

    fixed: float
    """Seconds that do not depend on the number of rows."""
    per_row: float
    """Seconds per row on one device."""
    rows: int
    """Rows in all (strong scaling), or on each device (weak scaling)."""
    all_reduces: tuple[tuple[int, int], ...]
    """(bytes, times)."""


class Prediction(NamedTuple):
    devices: int
    compute: float
    """Seconds."""
    reducing: float
    """Seconds in all-reduces."""
    efficiency: float
    """Rows per second and device, relative to one device."""

    @property
    def seconds(self) -> float:
        return self.compute + self.reducing


def all_reduce(num_bytes: float, levels: Sequence[Level]) -> float:
    """Return the seconds of an all-reduce. It goes level by level: within hosts, then once between hosts with each host's sum."""
    seconds = 0.0
    for size, link in levels:
        if size > 1:
            seconds += HOPS[link.hops](size) * link.hop + 2 * (size - 1) / size * num_bytes / link.bandwidth
    return seconds


def predict(work: Work, levels: Sequence[Level], *, weak: bool) -> Prediction:
    """Predict an iteration of one seed on all devices of ``levels``, innermost first."""
    devices = math.prod(level.size for level in levels)
    reducing = sum(times * all_reduce(num_bytes, levels) for num_bytes, times in work.all_reduces) if devices > 1 else 0.0
    compute = work.fixed + work.per_row * (work.rows if weak else work.rows / devices)
    one_device = work.fixed + work.per_row * work.rows
    return Prediction(devices, compute, reducing, one_device / (compute + reducing) / (1 if weak else devices))


def of_devices(number: int, inner: Level, outer: Link) -> list[Level]:
    """Return the levels of ``number`` devices on hosts with ``inner.size`` devices each. A single host may be partly used.

    Raises:
      ValueError: There are several hosts, and the last one is not full.
    """
    if number <= inner.size:
        return [inner._replace(size=number)]
    if number % inner.size:
        raise ValueError(f"{number} devices do not fill hosts of {inner.size}")
    return [inner, Level(number // inner.size, outer)]


def work_of(whole: float, half: float, rows: int, all_reduces: Iterable[Sequence[int]]) -> Work:
    """Compute the work from the seconds of an iteration with all rows, and with half of the rows, on one device."""
    per_row = min((whole - half) / (rows / 2), whole / rows)  # fixed is 0 if half of the rows take less than half of the time
    sizes = tuple((num_bytes, times) for num_bytes, times in all_reduces)
    return Work(whole - per_row * rows, per_row, rows, sizes)


def fit(points: Sequence[tuple[float, float]], size: int, hops: str = "ring") -> Link:
    """Fit the link of ``size`` devices to the (bytes, seconds) of all-reduces, by least squares of relative errors.

    Raises:
      ValueError: There are fewer than two sizes.
    """
    if len({num_bytes for num_bytes, _ in points}) < 2:
        raise ValueError("a fit needs all-reduces of at least two sizes")
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
    """Bound the expected time of the slowest of ``number`` processes relative to one.

    Times are normal with the relative deviation ``variation``: E[max] ≤ 1 + σ √(2 ln n).
    """
    return 1 + variation * math.sqrt(2 * math.log(number))

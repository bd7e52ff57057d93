"""``DividedLanes``: the slots of a search divided into equal parts, in groups of this process or in others.

All parts train at once, and the results come in the order of slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from jaxrl.runtime.search.lanes.lanes import Lanes, build
from jaxrl.runtime.search.search_file import SearchFile
from jaxrl.types import Agent


class Part(Protocol):
    """Some of the slots."""

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Begin a call of a method of ``Lanes`` or ``DividedLanes``."""
        ...

    def close(self) -> None: ...


class DividedLanes:
    """All slots, with the functions of ``Lanes``."""

    def __init__(self, agent: Agent, parts: Sequence[Part], slots: int) -> None:
        """``slots`` is the number of all of them."""
        self.agent, self.parts, self._each = agent, [*parts], slots // len(parts)
        self._compile_seconds = 0.0

    def _call(self, method: str, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Call a method of several parts at once: number -> arguments. Return number -> result."""
        pending = {number: self.parts[number].call(method, *args) for number, args in arguments.items()}
        return {number: future.result() for number, future in pending.items()}

    def _all(self, method: str, *args: Any) -> list[Any]:
        return [*self._call(method, {number: args for number in range(len(self.parts))}).values()]

    def _by_part(self, slots: Iterable[int]) -> dict[int, list[int]]:
        """Return the slots of each part that has some: its number -> slots, counted over all parts."""
        divided: dict[int, list[int]] = {}
        for slot in slots:
            divided.setdefault(slot // self._each, []).append(slot)
        return divided

    def refill(self, trials: Mapping[int, Mapping[str, float]], total_steps: int) -> None:
        """See ``Lanes``."""
        parts = self._by_part(trials)
        self._call("refill", {n: ({slot % self._each: trials[slot] for slot in here}, total_steps) for n, here in parts.items()})

    def free(self, slots: Sequence[int]) -> None:
        """See ``Lanes``."""
        self._call("free", {n: ([slot % self._each for slot in here],) for n, here in self._by_part(slots).items()})

    def train(self, iterations: Mapping[int, int]) -> int:
        """See ``Lanes``."""
        parts = self._by_part(iterations)
        arguments = {n: ({slot % self._each: iterations[slot] for slot in here},) for n, here in parts.items()}
        rows: int = sum(self._call("train", arguments).values())
        self._compile_seconds = max(self._all("compile_seconds"))
        return rows

    def compile_seconds(self) -> float:
        """Return the time that the slowest part has spent on compiling, after it last trained."""
        return self._compile_seconds

    def test(self, slots: Sequence[int], ages: Sequence[int], episodes: int) -> np.ndarray:
        """See ``Lanes``."""
        parts, age_of = self._by_part(slots), dict(zip(slots, ages, strict=True))
        arguments = {
            n: ([slot % self._each for slot in here], [age_of[slot] for slot in here], episodes) for n, here in parts.items()
        }
        rows: dict[int, np.ndarray] = {}
        for n, returns in self._call("test", arguments).items():
            rows |= zip(parts[n], returns, strict=True)
        return np.stack([rows[slot] for slot in slots])

    def save(self, folder: str | Path, step: int, part: int = 0, parts: int = 1) -> None:
        """See ``Lanes``: each part saves its slots."""
        self._at("save", folder, step, part, parts)

    def restore(self, folder: str | Path, step: int, part: int = 0, parts: int = 1) -> None:
        """See ``Lanes``."""
        self._at("restore", folder, step, part, parts)

    def _at(self, method: str, folder: str | Path, step: int, part: int, parts: int) -> None:
        each = len(self.parts)
        self._call(method, {i: (str(folder), step, part * each + i, parts * each) for i in range(each)})

    def close(self) -> None:
        """Free the states, or end the processes."""
        for part in self.parts:
            part.close()


class Group:
    """A part in this process. Groups on one device share its programs."""

    def __init__(self, lanes: Lanes, thread: ThreadPoolExecutor) -> None:
        self._lanes, self._thread = lanes, thread

    def call(self, method: str, *args: Any) -> Future[Any]:
        """See ``Part``."""
        return self._thread.submit(getattr(self._lanes, method), *args)

    def close(self) -> None:
        """Free the states."""
        self._lanes.close()
        self._thread.shutdown()


def open_lanes(
    search: SearchFile, structure: Mapping[str, Any], slots: int, devices: Sequence[jax.Device]
) -> Lanes | DividedLanes:
    """Return slots in this process: all of a search, or a part.

    With groups, each is a call of a program for one device, so its results do not depend on the number of devices. In arrays of
    other shapes, and in other programs, XLA rounds differently.
    """
    agent, names = build(search, structure), [d.hyperparam for d in search.space if d.hyperparam is not None]
    if search.options.groups is None:
        return Lanes(agent, slots, search.seeds, names, devices)
    each = search.options.batch // search.options.groups
    used = [*devices][: slots // each]
    if used[0].platform == "cpu":
        used = used[:1] * len(used)  # a core executes programs of any device, so one compilation is enough
    lanes = {device: Lanes(agent, each, search.seeds, names, [device]) for device in used}
    threads = [ThreadPoolExecutor(1) for _ in used]
    places = [place % len(used) for place in range(slots // each)]
    groups = [Group(lanes[used[place]].twin(), threads[place]) for place in places]
    return DividedLanes(agent, groups, slots)

"""Speedup by more devices: seeds over devices, the environments of one seed over devices, and the all-reduces that this needs.

Sides are processes or groups of processes. They run at the same time and take turns:

* ``2 devices``: one process in which JAX has two CPU devices. It uses both, or only one;
* ``one core``: a process with one device that may use one core;
* ``2 processes``, ``4 processes``: processes with one device each, connected over loopback (``jax.distributed``, gloo).

``benchmarks.scaling_model`` predicts the speed of more devices from the result.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.cases import CASES, Case
from benchmarks.groups import Group
from benchmarks.pauses import PauseWatch
from benchmarks.protocol import clean_environment
from benchmarks.record import write_result
from benchmarks.scaling_report import missed, scaling_report
from benchmarks.speed import say

__all__ = ["measure", "missed", "scaling_report"]

TWO_DEVICES, ONE_CORE, TWO_PROCESSES, FOUR_PROCESSES = "2 devices", "one core", "2 processes", "4 processes"


class Side(NamedTuple):
    """A group of processes."""

    num_processes: int
    devices: int
    """Devices of each process."""
    core: str = "any"
    """The only core that they may use."""


SIDES = {
    TWO_DEVICES: Side(1, 2),
    ONE_CORE: Side(1, 1, "0"),
    TWO_PROCESSES: Side(2, 1),
    FOUR_PROCESSES: Side(4, 1),
}


class Plan(NamedTuple):
    """Cases and sizes to measure."""

    seeds: Case
    """Seeds over devices."""
    seeds_iterations: int
    """Iterations per timed section."""
    shared: Case
    """One seed, whose environments are split over devices."""
    shared_iterations: int
    sizes: tuple[int, ...]
    """Sizes of all-reduces, in bytes."""
    section_seconds: float
    """Approximate length of a timed section of all-reduces."""


def case_of(num_envs: int, num_seeds: int) -> Case:
    """Return a case of PPO on CartPole from the cases of ``speed``."""
    return next(case for case in CASES if (case.group, case.settings["num_envs"], case.num_seeds) == ("ppo", num_envs, num_seeds))


SIZES = (*(4 * 8**n for n in range(8)), 16 * 2**20)
PLAN = Plan(case_of(4, 8), 400, case_of(512, 1), 16, SIZES, 0.25)
FEWEST = 8
"""Smallest number of all-reduces in a section."""


@contextlib.contextmanager
def opened(names: Sequence[str], cache: Path) -> Iterator[dict[str, Group]]:
    """Start groups of processes. Yield them by the names of their sides."""
    with contextlib.ExitStack() as stack:
        groups = {}
        for name in names:
            side = SIDES[name]
            environment = clean_environment(cache / name.replace(" ", "-")) | {"JAX_NUM_CPU_DEVICES": str(side.devices)}
            environment["JAX_PLATFORMS"] = "cpu"
            command = [sys.executable, "-m", "benchmarks.scaling_worker", side.core]
            groups[name] = stack.enter_context(Group(command, side.num_processes, environment))
        yield groups


class Rounds:
    """Timed sections that take turns."""

    def __init__(self, repeats: int, watch: PauseWatch) -> None:
        self._repeats, self._watch = repeats, watch

    def measure(self, sections: Mapping[Any, Callable[[], float]]) -> dict[Any, list[float]]:
        """Return the seconds of each section, round by round, after a warm-up round."""
        seconds: dict[Any, list[float]] = {key: [] for key in sections}
        for turn in range(self._repeats + 1):
            for key, section in sections.items():
                name = key if isinstance(key, str) else ": ".join(map(str, key))
                label = f"round {turn} of {self._repeats}: {name}" if turn else f"warm-up: {name}"
                spent = self._watch.undisturbed(section, label)
                say(f"{label} {1e3 * spent:.3g} ms")
                if turn:
                    seconds[key].append(spent)
        return seconds


def slowest(answers: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds of the slowest process."""
    return max(answer["seconds"] for answer in answers)


# ----------------------------------------------------------------------------------------------------------------- measurements

SEEDS = {
    "2 devices": (TWO_DEVICES, "seeds on two"),
    "1 device": (TWO_DEVICES, "seeds on one"),
    ONE_CORE: (ONE_CORE, "seeds on one"),
}
"""All seeds on both devices of a process, on one of them (XLA may use the other core's threads too), and on one core."""
TRAINED = {
    TWO_DEVICES: ("whole", "half", "shared", "apart"),
    ONE_CORE: ("whole", "half"),
    TWO_PROCESSES: ("shared", "apart"),
}
"""Group -> sides. See ``scaling_worker.SIDES``."""


def measure_seeds(groups: Mapping[str, Group], plan: Plan, rounds: Rounds, scale: float) -> dict[str, Any]:
    """Measure the seconds of an iteration of all seeds."""
    iterations = max(1, round(scale * plan.seeds_iterations))
    for group, side in SEEDS.values():
        groups[group].ask("prepare", side=side, case=plan.seeds._asdict())

    def section(group: str, side: str) -> float:
        return slowest(groups[group].ask("train", side=side, iterations=iterations)) / iterations

    seconds = rounds.measure({name: partial(section, *where) for name, where in SEEDS.items()})
    rows = plan.seeds.num_seeds * plan.seeds.steps_per_iteration
    return {"case": plan.seeds._asdict(), "rows": rows, "seconds": seconds}


def measure_shared(groups: Mapping[str, Group], plan: Plan, rounds: Rounds, scale: float) -> dict[str, Any]:
    """Measure the seconds of an iteration of one seed, of its parts, and of its all-reduces by themselves."""
    iterations = max(1, round(scale * plan.shared_iterations))
    settings = plan.shared.settings
    half = plan.shared._replace(settings=settings | {"num_envs": settings["num_envs"] // 2})
    cases = {"whole": plan.shared, "half": half, "shared": plan.shared, "apart": half._replace(num_seeds=2)}
    found: dict[str, list[Any]] = {}

    def train(group: str, side: str) -> float:
        return slowest(groups[group].ask("train", side=side, iterations=iterations)) / iterations

    def reduce(group: str) -> float:
        return slowest(groups[group].ask("reduce", all_of=found[group], rounds=iterations)) / iterations

    sections: dict[Any, Callable[[], float]] = {}
    for group, sides in TRAINED.items():
        for side in sides:
            answers = groups[group].ask("prepare", side=side, case=cases[side]._asdict())
            sections[group, side] = partial(train, group, side)
            if side == "shared":
                found[group] = answers[0]["all_reduces"]
                sections[group, "all-reduces"] = partial(reduce, group)
    seconds: dict[str, dict[str, list[float]]] = {group: {} for group in TRAINED}
    for (group, side), spent in rounds.measure(sections).items():
        seconds[group][side] = spent
    rows = plan.shared.steps_per_iteration
    return {"case": plan.shared._asdict(), "rows": rows, "all_reduces": found, "seconds": seconds}


def measure_reducing(groups: Mapping[str, Group], plan: Plan, rounds: Rounds) -> dict[str, Any]:
    """Measure the seconds of one all-reduce of each size."""
    names = [name for name in (TWO_DEVICES, TWO_PROCESSES, FOUR_PROCESSES) if name in groups]

    def section(group: str, num_bytes: int, times: int) -> float:
        return slowest(groups[group].ask("reduce", all_of=[[num_bytes, 1]], rounds=times)) / times

    sections: dict[Any, Callable[[], float]] = {}
    for num_bytes, group in itertools.product(plan.sizes, names):
        seconds_each = section(group, num_bytes, FEWEST)
        times = max(FEWEST, round(plan.section_seconds / seconds_each))
        sections[group, num_bytes] = partial(section, group, num_bytes, times)
    seconds: dict[str, list[Any]] = {name: [] for name in names}
    for (group, num_bytes), spent in rounds.measure(sections).items():
        seconds[group].append({"bytes": num_bytes, "seconds": spent})
    return seconds


def measure(repeats: int, scale: float, out: Path, plan: Plan = PLAN) -> dict[str, Any]:
    """Measure all parts, one after the other. Write ``scaling.json``.

    Raises:
      WorkerError: A process died or did not answer in time.
    """
    load = machine.load_with_warning()
    rounds = Rounds(repeats, PauseWatch().start())
    with tempfile.TemporaryDirectory() as folder:
        with opened([TWO_DEVICES, ONE_CORE, TWO_PROCESSES], Path(folder)) as groups:
            parts = {
                "seeds": measure_seeds(groups, plan, rounds, scale),
                "shared": measure_shared(groups, plan, rounds, scale),
            }
        with opened([TWO_DEVICES, TWO_PROCESSES, FOUR_PROCESSES], Path(folder)) as groups:
            parts["reducing"] = measure_reducing(groups, plan._replace(section_seconds=scale * plan.section_seconds), rounds)
    return write_result(out, "scaling", load=load, repeats=repeats, scale=scale, **parts)

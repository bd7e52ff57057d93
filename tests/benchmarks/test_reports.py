"""Reports of the committed results: their ratios are computed again from the measurements, and a missed requirement is said.

``test_pages_have_what_was_measured`` holds their text.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import json
import math
from typing import Any

import numpy as np
import pytest

from benchmarks import actors, evolution, learners, remote, replay, sampling, scaling_report, staleness
from benchmarks.__main__ import COMMANDS
from benchmarks.arguments import make_parser
from benchmarks.scaling_model import Level, Link, all_reduce, of_devices, predict
from tests.helpers.paths import ROOT

RESULTS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks/results").glob("*.json")}
REPORTS: dict[str, Any] = {
    "actors": (actors.actors_report, actors.missed),
    "evolution": (evolution.evolution_report, evolution.missed),
    "learners": (learners.learners_report, learners.missed),
    "remote": (remote.remote_report, remote.missed),
    "replay": (replay.replay_report, lambda result: min(replay.ratios(result)) < 1),
    "sampling": (sampling.sampling_report, sampling.missed),
    "scaling": (scaling_report.seeds_table, scaling_report.missed),
    "staleness": (staleness.staleness_report, staleness.missed),
}


def ratio(above: Any, below: Any) -> float:
    return float(np.median(np.divide(above, below)))


def cells(report: str, start: str) -> list[str]:
    """Return the cells of the table row with this start."""
    row = next(line for line in report.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in row.split("|")[2:-1]]


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("actors", ("handing", "asked"), 0.0),
        ("actors", ("stepping", 0, "asked"), 9.0),
        ("actors", ("slow", "asked"), 1e3),
        ("evolution", ("cases", 0, "trained", "jaxrl"), [{"seconds": [9.0] * 20, "returns": [500.0] * 20}]),
        ("learners", ("cases", 0, "asked"), 1e3),
        ("remote", ("seconds", "local", "shared value"), [1.0] * 5),
        ("remote", ("pools", 0, "asked"), 9.0),
        ("replay", ("cases", 0, "seconds", "jaxrl"), [1.0] * 5),
        ("sampling", ("cases", 0, "asked"), 9.0),
        ("scaling", ("seeds", "seconds", "2 devices"), [1.0] * 5),
        ("staleness", ("returns", "within"), [[-1500] * 120] * 16),
    ],
)
def test_what_was_missed_is_said(name: str, place: tuple[Any, ...], value: Any) -> None:
    (report, missed), result = REPORTS[name], copy.deepcopy(RESULTS[name])
    assert missed(result) == ("NO" in report(result))
    part = result
    for key in place[:-1]:
        part = part[key]
    before, part[place[-1]] = report(result).count("NO"), value
    assert missed(result) and report(result).count("NO") == before + 1


def test_ratios_of_sides_that_take_turns() -> None:
    """Medians of the ratios of each round."""
    report = replay.replay_report(RESULTS["replay"])
    for case in RESULTS["replay"]["cases"]:
        start = f"{'prioritised' if case['prioritised'] else 'uniform':<11} | {case['copies']:>6} |"
        assert cells(report, start)[3] == f"{ratio(case['seconds']['flashbax'], case['seconds']['jaxrl']):.2f}×"
    report = sampling.sampling_report(RESULTS["sampling"])
    for case in RESULTS["sampling"]["cases"]:
        raw, *sides = case["steps_per_second"].values()
        assert cells(report, case["env"])[1:-2] == [f"{ratio(side, raw):.0%}" for side in sides]
    result, report = RESULTS["actors"], actors.actors_report(RESULTS["actors"])
    seconds = result["handing"]["seconds"]
    assert cells(report, "57 MiB")[2] == f"{ratio(seconds['shared memory'], seconds['queue']):.1%}"
    for case in result["stepping"]:
        raw, *sides = case["steps_per_second"].values()
        assert cells(report, case["env"])[1:3] == [f"{ratio(side, raw):.0%}" for side in sides]
    one, *sides = result["slow"]["steps_per_second"].values()
    shown = [cells(report, "8 workers  ")[1], cells(report, "8 workers, learner acts")[1]]
    assert shown == [f"{ratio(side, one):.2f}" for side in sides]


@pytest.mark.parametrize(
    ("lags", "processor", "bound"),
    [
        (True, [2.0, 1.0, 4.0], 4.0),  # the longest part
        (True, [3.0, 1.0, 5.0], 4.5),  # half of all work
        (False, [2.0, 1.0, 4.0], 2.0 + 4.0),  # learning cannot overlap
    ],
)
def test_the_bound_of_learners_is_of_parts_that_may_overlap(lags: bool, processor: list[float], bound: float) -> None:
    seconds = {"stepping": [2.0], "acting": [1.0], "learning": [4.0], "plain": [8.0], "sync": [7.0], "xla, overlap": [5.0]}
    work = dict(zip(learners.PARTS, ([each] for each in processor), strict=True))
    case = {"asked": 1.2, "lags": lags, "seconds": seconds, "processor_seconds": work}
    assert learners.bounds(case, 2) == [bound] and learners.reached(case, 2) == ("xla, overlap", 1.6, bound / 5)
    assert learners.met(case, 2) == (bound / 5 >= learners.ASKED_OF_BOUND)


# --------------------------------------------------------------------------------------------------------------------- scaling


def test_scaling_is_measured_by_ratios_of_seconds() -> None:
    result = RESULTS["scaling"]
    seeds, shown = result["seeds"]["seconds"], scaling_report.seeds_table(result)
    for title, base in (("1 device  ", "1 device"), ("1 device on one core", "one core")):
        assert cells(shown, title)[1].startswith(f"{ratio(seeds[base], seeds['2 devices']):.2f} (")
    shown = scaling_report.shared_table(result)
    core, whole = (result["shared"]["seconds"][name] for name in ("one core", "2 devices"))
    for group in ("2 devices", "2 processes"):
        two = result["shared"]["seconds"][group]
        strong = [f"{ratio(base['whole'], two['shared']) / 2:.0%}" for base in (whole, core)]
        weak = [f"{ratio(base['half'], two['shared']):.0%}" for base in (whole, core)]
        costs = [ratio(two["all-reduces"], two["shared"]), 1 - ratio(two["apart"], two["shared"])]
        number = sum(times for _, times in result["shared"]["all_reduces"][group])
        expected = [", ".join(strong), ", ".join(weak), f"{number:,}", *(f"{share:.0%}" for share in costs)]
        assert cells(shown, group)[1:] == expected


def test_the_model_stands_beside_what_was_measured() -> None:
    """Links of 10, 100 and 200 µs per hop and 1 GB/s, and 36 all-reduces: 16 of 1 MB take 1 ms each, and all have 2 hops."""
    reducing = {}
    for name, size, hop in (("2 devices", 2, 1e-5), ("2 processes", 2, 1e-4), ("4 processes", 4, 2e-4)):
        level = [Level(size, Link(hop, 1e9))]
        reducing[name] = [{"bytes": n, "seconds": [all_reduce(n, level)]} for n in (4, 2**10, 2**20)]
    seconds = {"whole": [0.2], "half": [0.11], "shared": [0.12], "all-reduces": [0.012]}
    shared = {
        "rows": 65_536,
        "all_reduces": {name: [[1_000_000, 16], [20, 20]] for name in ("2 devices", "2 processes")},
        "seconds": dict.fromkeys(("2 devices", "2 processes", "one core"), seconds),
    }
    result = RESULTS["scaling"] | {"reducing": reducing, "shared": shared}
    shown, expected = scaling_report.checked_table(result), 0.11 + 36 * 20e-6 + 16e-3
    row = ["110.0", f"{1e3 * expected - 110:.2f} (12.00)", f"{1e3 * expected:.1f}", "120.0", f"{expected / 0.12 - 1:+.0%}"]
    assert cells(shown, "2 devices") == row
    shown = scaling_report.reducing_table(result)
    assert cells(shown, "4 B") == ["20 (20)", "200 (200)", "1,200 (600)"]  # 4 processes are foretold from 2
    assert cells(shown, "a hop") == ["10", "100", "200"] and cells(shown, "bandwidth") == ["1", "1", "1"]


def test_predictions_say_what_they_assume() -> None:
    result = RESULTS["scaling"]
    shown = scaling_report.predicted_table(result)
    for cluster in scaling_report.clusters(result):
        assert f"* **{cluster.title}**: {cluster.assumed}." in shown
        for how in ("strong", "weak"):
            found = predict(cluster.work, of_devices(1024, cluster.inner, cluster.outer), weak=how == "weak")
            share = f"{found.efficiency:.0%} ({found.reducing / found.seconds:.0%})"
            assert cells(shown, f"{cluster.title}, {how}")[-1] == share
    slowest = cells(scaling_report.stragglers_table(), "5%")[-1]
    assert slowest == f"{1 / (1 + 0.05 * math.sqrt(2 * math.log(1024))):.0%}"
    assert "nothing about speed" in scaling_report.about({**result, "scale": 0.1})


def test_each_command_is_a_function_or_a_module_that_takes_its_options() -> None:
    """``run_measurement`` gives a module's ``measure`` the options with the names of its parameters."""
    subparsers = next(action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert {*COMMANDS} < {*subparsers.choices}
    for command in {*subparsers.choices} - {*COMMANDS}:
        name, given = command.replace("-", "_"), vars(subparsers.choices[command].parse_args([]))
        module = importlib.import_module(f"benchmarks.{name}")
        needed = [each.name for each in inspect.signature(module.measure).parameters.values() if each.default is each.empty]
        assert {*needed} <= {*given}, command
        assert {*given} <= {*inspect.signature(module.measure).parameters}, command
        assert callable(getattr(module, f"{name}_report"))

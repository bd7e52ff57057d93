"""Speed of a case in jaxrl, of its updates alone, of its peers and of a random policy, in turn. Standard library only."""

from __future__ import annotations

import functools
import itertools
import json
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import kernels, machine
from benchmarks.cases import CASES, GROUPS, Case, scaled
from benchmarks.pauses import PauseWatch
from benchmarks.peer import PEERS
from benchmarks.protocol import Worker, clean_environment
from benchmarks.summary import speed_path
from benchmarks.thin import write_thin

OURS, PEER, BOUND = "jaxrl", "rejax", "random"
"""Sides whose compilation is measured too."""
UPDATES = "updates"
"""jaxrl's updates without its rollouts: a part of ``OURS``, not a program that users run."""
SEEDS_PER_ROUND = 1_000


def run(
    only: Sequence[str] = (),
    repeats: int = 5,
    compile_repeats: int = 3,
    out: Path = Path("."),
    scale: float = 1.0,
    without: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Measure the groups of ``only`` (empty: all) and return their results.

    Each result is written to ``out/speed-GROUP-PROCESSOR.json`` as soon as it is complete.

    Args:
      without: Peers to leave out.
    """
    gpu = find_gpu()
    asked = {side for case in CASES if case.group in (only or GROUPS) for _, side in sides_of([case], without)}
    for name in sorted(asked & PEERS.keys()):
        PEERS[name].install(gpu=gpu is not None)
    load = machine.load_with_warning()
    results = []
    for group in only or GROUPS:
        about = {
            "benchmark": "speed",
            "group": group,
            "command": machine.command(),
            "date": machine.timestamp(),
            "hardware": machine.hardware() | {"gpu": gpu},
            "load": load,
            "scale": scale,
            "without": sorted(without),
            **kernels.machine_rates(),
        }
        cases = [scaled(case, scale) for case in CASES if case.group == group]
        measured = measure(cases, sides_of(cases, without), repeats, compile_repeats, launches=gpu is not None)
        add_counts(measured, cases, on_cpu=gpu is None)
        results.append(about | {"cases": measured})
        out.mkdir(parents=True, exist_ok=True)
        write_thin(speed_path(out, results[-1]), results[-1])
    return results


def sides_of(cases: Sequence[Case], without: Collection[str] = ()) -> list[tuple[Case, str]]:
    """Return the sides of each case, in the order in which they take turns."""

    def sides(case: Case) -> tuple[str, ...]:
        return (UPDATES, OURS, *([] if case.no_peer else [PEER]), *case.beside, BOUND)

    return [(case, side) for case in cases for side in sides(case) if side not in without]


def measure(
    cases: Sequence[Case], keys: Sequence[tuple[Case, str]], repeats: int, compile_repeats: int, *, launches: bool = False
) -> list[dict[str, Any]]:
    """Measure several cases. They take turns too, so the workers of all of them run at the same time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        caches = (Path(folder) / str(number) for number in itertools.count())
        watch = PauseWatch().start()
        programs: dict[str, dict[str, Any]] = {case.name: {} for case in cases}
        workers = {}
        for number in range(compile_repeats):
            for case, side in keys:
                if number == 0:
                    compiled = compile_twice if side in (OURS, PEER, BOUND) else compile_once
                    worker, programs[case.name][side] = compiled(case, side, caches, watch)
                    workers[case.name, side] = stack.enter_context(worker)
                elif case.repeats_compilation and side in (OURS, PEER):
                    worker, again = compile_twice(case, side, caches, watch)
                    with worker:
                        for name in ("compile_seconds", "cached_compile_seconds"):
                            programs[case.name][side][name] += again[name]
        time_in_turns(keys, repeats, workers, programs, watch)
        if launches:
            for case, side in without_updates(keys):
                programs[case.name][side]["launches_per_iteration"] = launches_per_iteration(case, side, next(caches))
    return [case._asdict() | {"programs": programs[case.name]} for case in cases]


def add_counts(measured: Sequence[dict[str, Any]], cases: Sequence[Case], *, on_cpu: bool) -> None:
    """Add counts and separately timed parts of jaxrl's programs to their measurements."""
    flops, counts, products = kernels.count_flops(cases), {}, {}
    if on_cpu:
        counts, products = kernels.count(cases), kernels.time_products(cases)
    for case in measured:
        name, ours = case["name"], case["programs"][OURS]
        ours |= flops[name] | products.get(name, {}) | ({"kernels": counts[name]} if name in counts else {})


def compile_once(case: Case, side: str, caches: Iterator[Path], watch: PauseWatch) -> tuple[Worker, dict[str, Any]]:
    """Start a worker and compile, without timing. Return the worker and its description."""
    worker = start(case, side, next(caches))
    try:
        about = worker.ask("compile")
        return worker, {name: value for name, value in about.items() if name != "compile_seconds"}
    except BaseException:
        worker.close()
        raise


def compile_twice(case: Case, side: str, caches: Iterator[Path], watch: PauseWatch) -> tuple[Worker, dict[str, Any]]:
    """Measure trace-and-compile seconds in two new processes: with an empty cache, and with the cache that the first one filled.

    Return the first worker, still running, and its description with both times.
    """
    workers: list[Worker] = []

    def cold() -> tuple[Path, dict[str, Any]]:
        while workers:  # left by a disturbed attempt
            workers.pop().close()
        cache = next(caches)
        workers.append(start(case, side, cache))
        return cache, workers[0].ask("compile")

    def cached() -> float:
        with start(case, side, cache) as another:
            return another.ask("compile")["compile_seconds"]

    label = f"{case.title}: {side}"
    try:
        cache, about = watch.undisturbed(cold, label)
        seconds = watch.undisturbed(cached, label)
    except BaseException:
        workers[0].close()
        raise
    say(f"{label} compiles in {about['compile_seconds']:.2f} s, from the cache in {seconds:.2f} s")
    return workers[0], about | {"compile_seconds": [about["compile_seconds"]], "cached_compile_seconds": [seconds]}


def start(case: Case, side: str, cache: Path, variables: Mapping[str, str] | None = None) -> Worker:
    """Start the worker of one side of a case, with environment variables in addition to those that all have."""
    case_json = json.dumps(case._asdict())
    if side in PEERS:
        command = [str(PEERS[side].python), "-m", f"benchmarks.{side}_peer", case_json]
    else:
        command = [sys.executable, "-m", "benchmarks.jaxrl_side", case_json, side]
    return Worker(command, clean_environment(cache) | dict(variables or {}))


def time_in_turns(
    keys: Sequence[tuple[Case, str]],
    repeats: int,
    workers: Mapping[tuple[str, str], Any],
    programs: Mapping[str, Mapping[str, dict[str, Any]]],
    watch: PauseWatch,
) -> None:
    """Run rounds of one timed section per side, A B A B …, after a warm-up round. Then evaluate all trained policies."""
    for number in range(repeats + 1):
        for case, side in keys:
            worker, seed = workers[case.name, side], number * SEEDS_PER_ROUND
            label = f"round {number} of {repeats}: {case.title}: {side}" if number else f"warm-up: {case.title}: {side}"
            keep = number > 0 and side != UPDATES
            section = watch.undisturbed(functools.partial(worker.ask, "train", first_seed=seed, keep=keep), label)
            if number:
                programs[case.name][side].setdefault("sections", []).append(section)
            say(f"{label} {section['env_steps'] / section['seconds']:,.0f} env steps/s")
    for case, side in without_updates(keys):
        programs[case.name][side] |= workers[case.name, side].ask("evaluate")


def without_updates(keys: Sequence[tuple[Case, str]]) -> list[tuple[Case, str]]:
    """Return the sides that produce a policy."""
    return [(case, side) for case, side in keys if side != UPDATES]


def launches_per_iteration(case: Case, side: str, cache: Path) -> float:
    """Count kernels per iteration as the difference between two short runs, which cancels one-time work."""
    rows = case.steps_per_iteration
    start_up = case.settings.get("learning_starts", 0)

    def count(iterations: int) -> int:
        steps = start_up + iterations * rows
        short = case._replace(total_steps=steps, peer_total_steps=None, bound_total_steps=None, runs_per_section=1)
        with start(short, side, cache) as worker:
            worker.ask("compile")
            worker.ask("train", first_seed=0, keep=False)
            return worker.ask("launches")["launches"]

    return (count(8) - count(4)) / 4


def find_gpu() -> str | None:
    """Return the name of the GPU that JAX would use, or None."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker([sys.executable, "-c", _ASK_DEVICE], clean_environment(Path(folder))) as worker,
    ):
        return worker.ask("device")["gpu"]


_ASK_DEVICE = """
import jax
from benchmarks.pauses import PauseWatch
from benchmarks.protocol import serve
serve({"device": lambda: {"gpu": jax.devices()[0].device_kind if jax.default_backend() == "gpu" else None}})
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""Calls of remote objects, compared with ``multiprocessing.Pool`` and with actors of Ray itself."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.markdown import table
from benchmarks.record import write_result
from benchmarks.remote_objects import Worker, nothing
from jaxrl import remote

CALLS, MANY = 1000, 10_000
"""Calls one by one, and calls that are all sent before their answers, in each timed section."""

LARGE = 57 * 2**20
"""Bytes of the array that is handed over: a rollout of Pong."""

STARTED = 8
"""Objects that are started together."""

Section = Callable[[], float]
"""Returns seconds per call, of one timed section."""


def timed(calls: int, run: Callable[[], object]) -> Section:
    def section() -> float:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) / calls

    return section


def sections_of(cluster: remote.Cluster, scale: float) -> dict[str, Section]:
    """Return what is timed of one of jaxrl's engines."""
    one = cluster.start(Worker, cpus=0.1)
    one.ready.result(60)
    calls, many = max(1, round(CALLS * scale)), max(1, round(MANY * scale))
    shared = cluster.put(np.ones(LARGE, np.uint8))
    return {
        "one by one": timed(calls, lambda: [one.call("nothing").result() for _ in range(calls)]),
        "in flight": timed(many, lambda: [f.result() for f in [one.call("nothing") for _ in range(many)]]),
        "shared value": timed(10, lambda: [one.call("first", shared).result() for _ in range(10)]),
        "result": timed(5, lambda: [int(one.call("large", LARGE).result()[-1]) for _ in range(5)]),
    }


def start_several(cluster: remote.Cluster) -> None:
    """Start objects, wait until they are made, and end them."""
    objects = [cluster.start(Worker, cpus=0.1) for _ in range(STARTED)]
    for each in objects:
        each.ready.result(60)
    for each in objects:
        each.close()


@contextlib.contextmanager
def local_sides(scale: float) -> Iterator[dict[str, dict[str, Section]]]:
    """Yield the sides on this machine without Ray."""
    calls, many = max(1, round(CALLS * scale)), max(1, round(MANY * scale))
    context = multiprocessing.get_context("spawn")
    with remote.open(cpus=64) as cluster, context.Pool(1) as pool:
        pool.apply(nothing)
        yield {
            "local": sections_of(cluster, scale) | {"start": timed(STARTED, lambda: start_several(cluster))},
            "Pool": {
                "one by one": timed(calls, lambda: [pool.apply(nothing) for _ in range(calls)]),
                "in flight": timed(many, lambda: [f.get() for f in [pool.apply_async(nothing) for _ in range(many)]]),
                "result": timed(2, lambda: [int(pool.apply(np.ones, (LARGE, np.uint8))[-1]) for _ in range(2)]),
            },
        }


@contextlib.contextmanager
def ray_sides(scale: float) -> Iterator[dict[str, dict[str, Section]]]:
    """Yield the engine "ray" and an actor of Ray itself, on a cluster that is started here."""
    calls, many = max(1, round(CALLS * scale)), max(1, round(MANY * scale))
    with remote.open("ray", cpus=4) as cluster:
        import ray

        actor: Any = ray.remote(num_cpus=0.1)(Worker).remote()
        ray.get(actor.nothing.remote())
        shared = ray.put(np.ones(LARGE, np.uint8))
        yield {
            "ray": sections_of(cluster, scale),
            "Ray alone": {
                "one by one": timed(calls, lambda: [ray.get(actor.nothing.remote()) for _ in range(calls)]),
                "in flight": timed(many, lambda: ray.get([actor.nothing.remote() for _ in range(many)])),
                "shared value": timed(10, lambda: [ray.get(actor.first.remote(shared)) for _ in range(10)]),
                "result": timed(5, lambda: [int(ray.get(actor.large.remote(LARGE))[-1]) for _ in range(5)]),
            },
        }


def measure(repeats: int, scale: float, out: Path, with_ray: bool) -> dict[str, Any]:
    """Measure seconds per call, with the sides in turn. Write ``remote.json``."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for opened in (local_sides, ray_sides) if with_ray else (local_sides,):
        with opened(scale) as sides:
            for turn in range(repeats + 1):
                for side, sections in sides.items():
                    for name, section in sections.items():
                        spent = section()
                        if turn:  # the first warms up
                            seconds.setdefault(side, {}).setdefault(name, []).append(spent)
    packages = ["ray"] if with_ray else []
    return write_result(out, "remote", *packages, load=machine.load(), seconds=seconds)


def has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


def ratio(result: Mapping[str, Any], side: str, peer: str, name: str) -> float:
    """Return how many times as fast as the peer a side is: the median over rounds."""
    ours, theirs = result["seconds"][side][name], result["seconds"][peer][name]
    return median(b / a for a, b in zip(ours, theirs, strict=True))


def checks(result: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return the requirements, each with what was measured and whether it is met."""
    local = {name: median(values) for name, values in result["seconds"]["local"].items()}
    pool = {name: ratio(result, "local", "Pool", name) for name in ("one by one", "in flight")}
    found = [
        ("local, a call: at most 100 µs", f"{local['one by one'] * 1e6:.0f} µs", local["one by one"] <= 100e-6),
        ("local, a call: at most the time of Pool.apply", f"{pool['one by one']:.2f}×", pool["one by one"] >= 1),
        ("local, calls in flight: at least 20,000/s", f"{1 / local['in flight']:,.0f}/s", local["in flight"] <= 1 / 20e3),
        ("local, 57 MiB of a shared value: at most 1 ms", f"{local['shared value'] * 1e3:.2f} ms", local["shared value"] <= 1e-3),
        (f"local, {STARTED} objects: at most 1 s", f"{local['start'] * STARTED:.2f} s", local["start"] * STARTED <= 1),
    ]
    if "ray" in result["seconds"]:
        least = {"one by one": 0.85, "in flight": 0.85, "result": 0.9}
        for name, limit in least.items():
            reached = ratio(result, "ray", "Ray alone", name)
            found.append((f"ray, {name}: at least {limit}× Ray alone", f"{reached:.2f}×", reached >= limit))
    return found


def missed(result: Mapping[str, Any]) -> bool:
    """Return True if a requirement is not met."""
    return not all(met for _, _, met in checks(result))


def remote_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    units = {"one by one": (1e6, "µs"), "in flight": (1e6, "µs"), "shared value": (1e3, "ms"), "result": (1e3, "ms")}
    units["start"] = (1e3, "ms")
    rows = [
        [side, *(f"{median(times[name]) * factor:.1f} {unit}" if name in times else "" for name, (factor, unit) in units.items())]
        for side, times in result["seconds"].items()
    ]
    lines = [
        "## Remote objects: seconds of a call",
        f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, {result['hardware']['cores']} cores"
        + (f", ray {result['versions']['ray']}" if "ray" in result["versions"] else ""),
        table(["", "one by one", "in flight", "57 MiB shared", "57 MiB result", f"start, of {STARTED}"], rows),
        table(["requirement", "measured", "met"], [[what, value, "yes" if met else "NO"] for what, value, met in checks(result)]),
        "Medians over rounds in which all sides take turns. *Pool*: `multiprocessing.Pool(1)`. *Ray alone*: an actor of Ray and "
        "`ray.get`. *57 MiB shared*: a call with a value that was put once. *start*: per object, including its end.",
    ]
    return "\n\n".join(lines)

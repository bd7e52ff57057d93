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

import jaxrl
from benchmarks import machine
from benchmarks.actors import Slow, Stepping, collected, faster, pooled, rates
from benchmarks.jaxrl_side import make_random_agent
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


POOLS = (Stepping("HalfCheetah-v4", 128, asked=0.8), Slow(asked=0.95))
"""Pools of actors on one node of Ray, with the smallest share of the local pool's steps per second."""


def measure_pool(case: Stepping | Slow, repeats: int, scale: float) -> dict[str, Any]:
    """Measure the environment steps per second of a pool of this machine, and of one on a cluster of Ray that is started here."""
    num_workers = case.num_workers if isinstance(case, Stepping) else case.num_envs
    if isinstance(case, Stepping):
        agent = make_random_agent(f"envpool:{case.env}?num_threads=1", case.num_envs, case.rollout_length)
    else:
        agent = jaxrl.make_impala(case.env, num_envs=case.num_envs, rollout_length=case.rollout_length)
    with contextlib.ExitStack() as stack:
        stack.enter_context(remote.open("ray", cpus=num_workers))
        sides = {engine: stack.enter_context(collected(agent, pooled(num_workers, engine=engine))) for engine in ("local", "ray")}
        return rates(case, sides, repeats, scale)


def measure(repeats: int, scale: float, out: Path, with_ray: bool) -> dict[str, Any]:
    """Measure seconds per call, with the sides in turn, and pools of actors. Write ``remote.json``."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for opened in (local_sides, ray_sides) if with_ray else (local_sides,):
        with opened(scale) as sides:
            for turn in range(repeats + 1):
                for side, sections in sides.items():
                    for name, section in sections.items():
                        spent = section()
                        if turn:  # the first warms up
                            seconds.setdefault(side, {}).setdefault(name, []).append(spent)
    pools = [measure_pool(case, repeats, scale) for case in POOLS] if with_ray else []
    packages = ["ray", "envpool"] if with_ray else []
    return write_result(out, "remote", *packages, load=machine.load(), seconds=seconds, pools=pools)


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
    for case in result["pools"]:
        reached = faster(case, "ray")
        found.append(
            (
                f"pool on Ray, {in_words(case)}: at least {case['asked']}× a local pool",
                f"{reached:.2f}×",
                reached >= case["asked"],
            )
        )
    return found


def in_words(case: Mapping[str, Any]) -> str:
    """Describe a pool."""
    if "num_workers" in case:
        return f"{case['num_envs']} × {case['env']} in {case['num_workers']} workers"
    return f"{case['num_envs']} environments that wait, a worker each"


def missed(result: Mapping[str, Any]) -> bool:
    """Return True if a requirement is not met."""
    return not all(met for _, _, met in checks(result))


def pools_table(result: Mapping[str, Any]) -> list[str]:
    """Return the table of pools of actors; empty if none was measured."""
    rows = [
        [in_words(case), *(f"{median(rate):,.0f}" for rate in case["steps_per_second"].values()), f"{faster(case, 'ray'):.2f}"]
        for case in result["pools"]
    ]
    return [table(["steps per second of actor pools", "local", "Ray", "Ray / local"], rows)] if rows else []


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
        *pools_table(result),
        table(["requirement", "measured", "met"], [[what, value, "yes" if met else "NO"] for what, value, met in checks(result)]),
        "Medians over rounds in which all sides take turns. *Pool*: `multiprocessing.Pool(1)`. *Ray alone*: an actor of Ray and "
        "`ray.get`. *57 MiB shared*: a call with a value that was put once. *start*: per object, including its end.",
    ]
    return "\n\n".join(lines)

"""Worker processes: the cost of receiving rollouts, and their speed compared with raw steps of the same environments.

Slow environments in workers are compared with the same environments in one process.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax

import jaxrl
from benchmarks import machine
from benchmarks.jaxrl_side import make_random_agent
from benchmarks.markdown import table
from benchmarks.other_process import started, step_raw
from benchmarks.record import write_result
from benchmarks.sampling import drawn_actions
from benchmarks.transport import Section, handed, pong_rollout
from jaxrl.runtime.actors.central_inference import CentralSampler
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.samplers.asynchronous import AsyncSampler
from jaxrl.runtime.samplers.sampler import HostSampler, Sampler
from jaxrl.runtime.system.cores import usable_cores
from jaxrl.types import Agent

AHEAD = 2
"""Rollouts in progress at the same time, as in the schemes "impala" and "apex"."""
WORKERS, PINNED = "workers", "pinned"
"""Sides that use an ``ActorPool``. In the second, each worker is pinned to a core. The requirement is on the better of them."""


class Handing(NamedTuple):
    """A rollout of Pong: 60 MB."""

    num_envs: int = 64
    num_rows: int = 32
    rollouts: int = 5
    """Rollouts per timed section."""
    asked: float = 0.1
    """Largest share of the queue's seconds."""


class Stepping(NamedTuple):
    """Environments of envpool in two processes."""

    env: str
    """envpool's name of it."""
    rollout_length: int
    rollouts: int = 6
    num_envs: int = 64
    num_workers: int = 2
    asked: float = 0.8
    """Smallest share of the raw environments' steps per second."""


class Slow(NamedTuple):
    """Environments that wait in Python, one per worker."""

    env: str = "gymnasium:benchmarks.waiting:Waiting"
    rollout_length: int = 32
    rollouts: int = 3
    num_envs: int = 8
    asked: float = 6.0
    """Smallest speedup over the same environments in this process."""


HANDING, SLOW = Handing(), Slow()
STEPPING = (Stepping("Pong-v5", 32), Stepping("HalfCheetah-v4", 128))


# ------------------------------------------------------------------------------------------------------------------------ sides


def timed(side: Callable[[int], Any], rollouts: int) -> Section:
    """Return a function that times ``rollouts`` rollouts, in seconds."""

    def section() -> float:
        start = time.perf_counter()
        side(rollouts)
        return time.perf_counter() - start

    return section


@contextlib.contextmanager
def collected(agent: Agent, make: Callable[..., Any]) -> Iterator[Callable[[int], Any]]:
    """Yield a function that collects complete rollouts with a sampler. A sampler with ``begin`` is ``AHEAD`` rollouts ahead."""
    with contextlib.closing(make(agent, [0])) as sampler:
        policy = jax.tree.map(lambda x: x[None], agent.algorithm.policy(agent.init(jax.random.key(0)).learner))
        keys = jax.random.split(jax.random.key(1), 1)
        begin = getattr(sampler, "begin", lambda *args: partial(sampler.collect, *args))

        def side(rollouts: int) -> None:
            under_way: deque[Callable[[], Any]] = deque()
            for number in range(rollouts + AHEAD):
                if number < rollouts:
                    under_way.append(begin(policy, keys))
                if number >= AHEAD:
                    jax.block_until_ready(under_way.popleft()())

        yield side


def pooled(num_workers: int, **settings: Any) -> Callable[..., Sampler]:
    """``settings`` are keywords of ``ActorPool``."""
    return partial(ActorPool, num_workers=num_workers, clock="async", **settings)


def central(num_workers: int) -> Callable[..., Sampler]:
    """Return a sampler whose workers only step. The policy acts in this process, on the half of the environments ready first."""
    return partial(CentralSampler, sampler=AsyncSampler, num_workers=num_workers, max_restarts=0, timeout=60.0, log_folder=None)


@contextlib.contextmanager
def raw(case: Stepping) -> Iterator[Callable[[int], Any]]:
    """Yield a function that loops over envpool's own ``step`` in each process, with as many threads as a worker uses."""
    each, threads = case.num_envs // case.num_workers, max(1, usable_cores() // case.num_workers)
    with contextlib.ExitStack() as stack:
        others = []
        for seed in range(case.num_workers):
            actions = drawn_actions(case.env, each)
            others.append(stack.enter_context(started(step_raw, case.env, seed, each, threads, actions)))

        def all_of(message: int) -> None:
            for other in others:
                other.tell(message)
            for other in others:
                other.wait()

        for other in others:  # until their environments are open
            other.wait()
        yield lambda rollouts: all_of(rollouts * case.rollout_length)


# ------------------------------------------------------------------------------------------------------------------ measurement


def take_turns(sides: Mapping[str, Section], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each side in each round. The first round is left out, since programs compile in it."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, section in sides.items():
            spent = section()
            if turn:
                seconds[name].append(spent)
    return seconds


def measure_handing(case: Handing, repeats: int, scale: float) -> dict[str, Any]:
    layout = pong_rollout(case.num_envs, max(1, round(scale * case.num_rows)))
    with handed(layout, max(1, round(scale * case.rollouts))) as sides:
        return {"asked": case.asked, "bytes": layout.num_bytes, "seconds": take_turns(sides, repeats)}


def measure_stepping(case: Stepping, repeats: int, scale: float) -> dict[str, Any]:
    agent = make_random_agent(f"envpool:{case.env}", case.num_envs, case.rollout_length)
    with contextlib.ExitStack() as stack:
        sides = {"raw": stack.enter_context(raw(case))}
        for name in (WORKERS, PINNED):
            sides[name] = stack.enter_context(collected(agent, pooled(case.num_workers, pin=name == PINNED)))
        return rates(case, sides, repeats, scale)


def measure_slow(case: Slow, repeats: int, scale: float) -> dict[str, Any]:
    agent = jaxrl.make_impala(case.env, num_envs=case.num_envs, rollout_length=case.rollout_length)
    makers = {"one process": HostSampler, WORKERS: pooled(case.num_envs), "learner acts": central(case.num_envs)}
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(collected(agent, make)) for name, make in makers.items()}
        return rates(case, sides, repeats, scale)


def rates(case: Stepping | Slow, sides: Mapping[str, Callable[[int], Any]], repeats: int, scale: float) -> dict[str, Any]:
    """Return a case with the environment steps per second of its sides, which take turns."""
    rollouts = max(1, round(scale * case.rollouts))
    steps = rollouts * case.rollout_length * case.num_envs
    seconds = take_turns({name: timed(side, rollouts) for name, side in sides.items()}, repeats)
    return case._asdict() | {"steps_per_second": {name: [steps / each for each in spent] for name, spent in seconds.items()}}


def measure(
    repeats: int,
    scale: float,
    out: Path,
    handing: Handing = HANDING,
    stepping: tuple[Stepping, ...] = STEPPING,
    slow: Slow = SLOW,
) -> dict[str, Any]:
    """Measure all parts, one after the other. Write ``actors.json``."""
    load = machine.load()
    parts = {
        "handing": measure_handing(handing, repeats, scale),
        "stepping": [measure_stepping(case, repeats, scale) for case in stepping],
        "slow": measure_slow(slow, repeats, scale),
    }
    return write_result(out, "actors", "envpool", load=load, **parts)


# ----------------------------------------------------------------------------------------------------------------------- report


def of_queue(result: Mapping[str, Any]) -> float:
    """Return shared memory's seconds over the queue's: the median over rounds."""
    seconds = result["handing"]["seconds"]
    return median(mine / theirs for mine, theirs in zip(seconds["shared memory"], seconds["queue"], strict=True))


def faster(case: Mapping[str, Any], side: str) -> float:
    """Return a side's steps per second over those of the first side: the median over rounds."""
    bound, *_ = case["steps_per_second"].values()
    return median(mine / theirs for mine, theirs in zip(case["steps_per_second"][side], bound, strict=True))


def best(case: Mapping[str, Any]) -> float:
    """Return ``faster`` of the best pool."""
    return max(faster(case, side) for side in (WORKERS, PINNED) if side in case["steps_per_second"])


def missed(result: Mapping[str, Any]) -> bool:
    """Return True if a requirement was not met."""
    late = of_queue(result) >= result["handing"]["asked"]
    return late or any(best(case) < case["asked"] for case in [*result["stepping"], result["slow"]])


def said(met: bool) -> str:
    return "yes" if met else "NO"


def actors_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    handing, slow = result["handing"], result["slow"]
    queue, shared = (f"{1e3 * median(seconds):.2f}" for seconds in handing["seconds"].values())
    share = of_queue(result)
    handed_over = [f"{handing['bytes'] / 2**20:.0f} MiB", queue, shared, f"{share:.1%}", f"< {handing['asked']:.0%}"]
    stepped = [
        [
            f"{case['env']}, {case['num_envs']} in {case['num_workers']} processes",
            f"{median(case['steps_per_second']['raw']):,.0f}",
            *(f"{faster(case, side):.0%}" for side in (WORKERS, PINNED)),
            f"≥ {case['asked']:.0%}",
            said(best(case) >= case["asked"]),
        ]
        for case in result["stepping"]
    ]
    first, *others = slow["steps_per_second"]
    waited = [[first, f"{median(slow['steps_per_second'][first]):,.0f}", "", "", ""]]
    for name in others:
        times = faster(slow, name)
        asked = [f"≥ {slow['asked']:g}", said(times >= slow["asked"])] if name == WORKERS else ["", ""]
        title = f"{slow['num_envs']} workers" + ("" if name == WORKERS else f", {name}")
        waited.append([title, f"{median(slow['steps_per_second'][name]):,.0f}", f"{times:.2f}", *asked])
    lines = [
        "## Worker processes",
        f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, {result['hardware']['cores']} cores, "
        f"jax {result['versions']['jax']}, envpool {result['versions']['envpool']}",
        table(
            ["a rollout of Pong, ms", "queue", "shared memory", "share", "required", "met"],
            [[*handed_over, said(share < handing["asked"])]],
        ),
        table(["a random policy", "raw, env steps/s", WORKERS, PINNED, "required of the better", "met"], stepped),
        table([f"{slow['num_envs']} slow environments", "env steps/s", "speedup", "required", "met"], waited),
        "Medians over rounds in which all sides take turns. The rollout comes from another process, and one byte of each page is "
        "read. *queue*: `multiprocessing.Queue`. *raw*: envpool's own steps with pre-drawn actions, in the same number of "
        "processes and threads. *pinned*: each worker has a separate core. A step of a slow environment waits for 5 ms.",
    ]
    return "\n\n".join(lines)

"""Speed of host samplers with a random policy, compared with raw steps of the same environments."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium import spaces

import jaxrl
from benchmarks import machine
from benchmarks.jaxrl_side import make_random_agent
from benchmarks.markdown import table
from benchmarks.record import write_result
from jaxrl.runtime.samplers.by_name import SAMPLERS
from jaxrl.types import HostEnv

NUM_ENVS = 64
DRAWN = 64
"""Batches of actions for the raw environments. They are drawn before timing and used in turn."""


class Case(NamedTuple):
    env: str
    """envpool's name of it."""
    asked: float
    """Share of the raw environments' steps per second that a sampler must reach."""
    rollout_length: int
    rows: int
    """Rows per timed section."""


CASES = (Case("CartPole-v1", 0.85, 128, 4096), Case("Pong-v5", 0.90, 32, 128), Case("HalfCheetah-v4", 0.95, 128, 512))

Rows = Callable[[], Any]
"""Collects one rollout, or steps the same number of rows."""


def drawn_actions(name: str, num_envs: int) -> np.ndarray:
    """Draw random actions for an environment of envpool: [DRAWN, num_envs, ...]."""
    space, rng = jaxrl.make_env(f"envpool:{name}").action_space, np.random.default_rng(0)
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, int(space.n), (DRAWN, num_envs)).astype(np.int32)
    assert isinstance(space, spaces.Box)
    return rng.uniform(space.low, space.high, (DRAWN, num_envs, *space.shape))


@contextlib.contextmanager
def raw(case: Case) -> Iterator[Rows]:
    """Yield a function that calls envpool's ``step`` as its documentation shows, with pre-drawn actions."""
    import envpool

    pool = envpool.make_gymnasium(case.env, num_envs=NUM_ENVS, seed=0)
    pool.reset()
    actions = drawn_actions(case.env, NUM_ENVS)

    def rows() -> None:
        for t in range(case.rollout_length):
            pool.step(actions[t % DRAWN])

    yield rows


@contextlib.contextmanager
def sampled(case: Case, sampler: str) -> Iterator[Rows]:
    """Yield a function that collects complete rollouts with one of jaxrl's samplers."""
    agent = make_random_agent(f"envpool:{case.env}", NUM_ENVS, case.rollout_length)
    assert isinstance(agent.env, HostEnv)
    with contextlib.closing(SAMPLERS[sampler](agent, [0])) as collecting:
        policy = jax.tree.map(lambda x: x[None], agent.algorithm.policy(agent.init(jax.random.key(0)).learner))
        keys = jax.random.split(jax.random.key(1), 1)
        yield lambda: jax.block_until_ready(collecting.collect(policy, keys))


def measure(repeats: int, scale: float, out: Path) -> dict[str, Any]:
    """Measure environment steps per second, with the sides of a case in turn. Write ``sampling.json``."""
    cases = []
    for case in CASES:
        times = max(1, round(scale * case.rows / case.rollout_length))
        with contextlib.ExitStack() as stack:
            sides = {"raw": stack.enter_context(raw(case))}
            sides |= {name: stack.enter_context(sampled(case, name)) for name in SAMPLERS}
            rates: dict[str, list[float]] = {name: [] for name in sides}
            for turn in range(repeats + 1):
                for name, rows in sides.items():
                    start = time.perf_counter()
                    for _ in range(times):
                        rows()
                    if turn:  # the first compiles
                        steps = times * case.rollout_length * NUM_ENVS
                        rates[name].append(steps / (time.perf_counter() - start))
        cases.append({"env": case.env, "asked": case.asked, "rollout_length": case.rollout_length, "steps_per_second": rates})
    return write_result(out, "sampling", "envpool", load=machine.load(), num_envs=NUM_ENVS, cases=cases)


def shares(case: Mapping[str, Any]) -> dict[str, float]:
    """Return each sampler's share of the raw environments' rate: the median over rounds."""
    rates = case["steps_per_second"]
    return {
        name: median(ours / raw for ours, raw in zip(rates[name], rates["raw"], strict=True)) for name in rates if name != "raw"
    }


def missed(result: Mapping[str, Any]) -> bool:
    """Return True if in some case no sampler reaches the required share."""
    return any(max(shares(case).values()) < case["asked"] for case in result["cases"])


def sampling_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for case in result["cases"]:
        reached = shares(case)
        met = "yes" if max(reached.values()) >= case["asked"] else "NO"
        rate = f"{median(case['steps_per_second']['raw']):,.0f}"
        rows.append([case["env"], rate, *(f"{share:.0%}" for share in reached.values()), f"≥ {case['asked']:.0%}", met])
    names = list(shares(result["cases"][0]))
    lines = [
        f"## Sampling: {result['num_envs']} environments of envpool and a random policy",
        f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, {result['hardware']['cores']} cores, "
        f"jax {result['versions']['jax']}, envpool {result['versions']['envpool']}",
        table(["", "raw, env steps/s", *names, "required of the best", "met"], rows),
        "Medians over rounds in which all sides take turns. *raw*: envpool's own steps, with pre-drawn actions.",
    ]
    return "\n\n".join(lines)

"""Memory of many vmapped seeds of DQN, compared with the size of the rows in their replay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxrl
from benchmarks.markdown import origin, table
from benchmarks.record import write_result
from jaxrl.replay.size import replay_bytes
from jaxrl.runtime.trainers.fused import FusedDriver

SEEDS, CAPACITY = 16, 100_000
CASES: dict[str, dict[str, Any]] = {"CartPole-v1": {}, "Breakout-MinAtar": {"model": {"encoder": "flat"}}}
"""Environment -> settings that differ from DQN's defaults."""
ALLOWED = 1.3
"""Largest memory of the program, as a multiple of the rows."""


def measure(scale: float, out: Path) -> dict[str, Any]:
    """Measure the training program's memory as XLA reports it. Write ``memory.json``."""
    capacity = max(10_000, round(CAPACITY * scale))
    cases = [measure_case(env, settings, capacity) for env, settings in CASES.items()]
    return write_result(out, "memory", seeds=SEEDS, capacity=capacity, cases=cases)


def measure_case(env: str, settings: Mapping[str, Any], capacity: int) -> dict[str, Any]:
    agent = jaxrl.make_dqn(env, buffer_size=capacity, **settings)
    driver = FusedDriver(agent, range(SEEDS), jax.devices()[:1])
    driver.iterate(driver.init(), 1)  # compiles
    program = driver.programs["iterate"].memory_analysis()
    whole = program.argument_size_in_bytes + program.output_size_in_bytes - program.alias_size_in_bytes
    return {
        "env": env,
        "settings": dict(settings),
        "row_bytes": row_bytes(agent),
        "rows": SEEDS * capacity * row_bytes(agent),
        "replay": SEEDS * replay_bytes(agent),
        "program": whole + program.temp_size_in_bytes,
    }


def row_bytes(agent: Any) -> int:
    """Return the bytes of a row: an observation, an action, a reward and two flags."""
    space = agent.env.observation_space
    return int(np.prod(space.shape)) * space.dtype.itemsize + 4 + 4 + 2


def missed(result: Mapping[str, Any]) -> list[str]:
    """Return the environments whose program exceeds the limit."""
    return [case["env"] for case in result["cases"] if case["program"] > ALLOWED * case["rows"]]


def memory_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for case in result["cases"]:
        shares = [f"{x / 2**20:,.0f} ({x / case['rows']:.2f})" for x in (case["replay"], case["program"])]
        rows.append([case["env"], str(case["row_bytes"]), f"{case['rows'] / 2**20:,.0f}", *shares])
    header = ["DQN on", "bytes of a row", "all rows, MiB", "replay", "program"]
    lines = [
        f"## Memory: {result['seeds']} seeds in one program, {result['capacity']:,} rows each",
        origin(result),
        table(header, rows),
        "In MiB, with the multiple of the rows in brackets. *a row*: observation, action, reward and two flags. *replay*: its "
        "arrays. *program*: all arrays of the training program, as planned by XLA.",
    ]
    return "\n\n".join(lines)

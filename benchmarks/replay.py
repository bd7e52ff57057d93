"""Speed of replay (add and draw) compared with flashbax (``pip install "jaxrl[peers]"``), single and vmapped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.markdown import table
from benchmarks.record import write_result
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.transitions import ReplayRow
from jaxrl.replay.uniform import uniform_replay

CAPACITY, BATCH, COPIES = 100_000, 128, (1, 16)
ITERATIONS, FEWEST = 2_000, 20
"""Iterations per timed section: at most, and at least where they are slow."""
SECTION_SECONDS = 2.0
EXPONENT = 0.6
ROW = ReplayRow(np.zeros(4, np.float32), np.int32(0), np.float32(0), np.bool_(False), np.bool_(True))  # type: ignore[arg-type]
"""A row of CartPole."""


class Side(NamedTuple):
    """One library's buffer, with one iteration of an algorithm that learns after every row."""

    init: Callable[[], Any]
    iterate: Callable[[Any, Any, ReplayRow], tuple[Any, Any]]
    """(state, key, row) -> (state, a number that depends on everything drawn)."""


def ours(capacity: int, *, prioritised: bool) -> Side:
    make = prioritised_replay(priority_exponent=EXPONENT) if prioritised else uniform_replay
    replay = make(capacity, 1, 1, before=0, after=1)

    def iterate(state: Any, key: Any, row: ReplayRow) -> tuple[Any, Any]:
        state = replay.add(state, jax.tree.map(lambda x: x[None, None], row), jnp.arange(1))
        draw = replay.draw(state, key, BATCH)
        first, second = (replay.take(state, draw, offset) for offset in (0, 1))
        return replay.update(state, draw, jnp.abs(first.reward)), _sum(first, second)

    return Side(lambda: replay.init(ROW), iterate)


def flashbax(capacity: int, *, prioritised: bool) -> Side:
    import flashbax

    # flashbax counts pairs of rows. min_length=1 lets it draw from the start, as jaxrl does here.
    sizes = {"max_length": capacity, "min_length": 1, "sample_batch_size": BATCH}
    make = flashbax.make_prioritised_flat_buffer if prioritised else flashbax.make_flat_buffer
    buffer = make(**sizes, **({"priority_exponent": EXPONENT} if prioritised else {}))

    def iterate(state: Any, key: Any, row: ReplayRow) -> tuple[Any, Any]:
        state = buffer.add(state, row)
        drawn = buffer.sample(state, key)
        first, second = drawn.experience
        if prioritised:
            state = buffer.set_priorities(state, drawn.indices, jnp.abs(first.reward) + 1e-6)
        return state, _sum(first, second)

    return Side(lambda: buffer.init(ROW), iterate)


def _sum(*rows: ReplayRow) -> Any:
    return sum(x.astype(jnp.float32).sum() for x in jax.tree.leaves(rows))


def program(side: Side, copies: int, iterations: int) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Return the initial states of ``copies`` buffers and the jitted loop (states, keys) -> (states, sums). It donates states."""

    def loop(state: Any, key: Any) -> Any:
        def step(carry: Any, number: Any) -> Any:
            state, total = carry
            step_key = jax.random.fold_in(key, number)
            obs = jax.random.normal(step_key, (4,))
            state, drawn = side.iterate(state, step_key, ROW._replace(obs=obs, reward=obs[0]))
            return (state, total + drawn), None

        return jax.lax.scan(step, (state, 0.0), jnp.arange(iterations))[0]

    def begin() -> Any:
        state = side.init()
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (copies, *jnp.shape(x))) if copies > 1 else jnp.asarray(x), state)

    looped = jax.vmap(loop) if copies > 1 else loop
    return jax.jit(begin)(), jax.jit(looped, donate_argnums=0)


class Timed:
    """The loop of one side, in sections of about ``SECTION_SECONDS`` or ``most`` iterations, whichever is shorter."""

    def __init__(self, side: Side, copies: int, most: int) -> None:
        self.keys = jax.random.split(jax.random.key(0), copies) if copies > 1 else jax.random.key(0)
        self._compile(side, copies, min(FEWEST, most))
        if (fit := int(SECTION_SECONDS / self.section())) > self.iterations:
            self._compile(side, copies, min(fit, most))

    def _compile(self, side: Side, copies: int, iterations: int) -> None:
        self.iterations = iterations
        self.state, self.loop = program(side, copies, iterations)
        self.section()

    def section(self) -> float:
        """Run one section and return its seconds per iteration."""
        start = time.perf_counter()
        self.state, _ = jax.block_until_ready(self.loop(self.state, self.keys))
        return (time.perf_counter() - start) / self.iterations


def measure(repeats: int, scale: float, out: Path) -> dict[str, Any]:
    """Measure the seconds per iteration of all copies, with both libraries in turn. Write ``replay.json``."""
    iterations, capacity = max(2, round(ITERATIONS * scale)), max(BATCH, round(CAPACITY * scale))
    cases = []
    for prioritised in (False, True):
        for copies in COPIES:
            sides = {"jaxrl": ours(capacity, prioritised=prioritised), "flashbax": flashbax(capacity, prioritised=prioritised)}
            timed = {name: Timed(side, copies, iterations) for name, side in sides.items()}
            seconds: dict[str, list[float]] = {name: [] for name in timed}
            for _ in range(repeats):
                for name, side in timed.items():
                    seconds[name].append(side.section())
            cases.append({"prioritised": prioritised, "copies": copies, "seconds": seconds})
    return write_result(out, "replay", "flashbax", capacity=capacity, batch_size=BATCH, cases=cases)


def ratios(result: Mapping[str, Any]) -> list[float]:
    """Return flashbax's time over jaxrl's for each case: the median over rounds."""
    pairs = ((case["seconds"]["flashbax"], case["seconds"]["jaxrl"]) for case in result["cases"])
    return [median(theirs / ours for theirs, ours in zip(*pair, strict=True)) for pair in pairs]


def replay_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for case, ratio in zip(result["cases"], ratios(result), strict=True):
        times = [f"{1e6 * median(case['seconds'][name]):.1f}" for name in ("jaxrl", "flashbax")]
        met = "yes" if ratio >= 1 else "NO"
        rows.append(["prioritised" if case["prioritised"] else "uniform", str(case["copies"]), *times, f"{ratio:.2f}×", met])
    lines = [
        f"## Replay: one row added, {result['batch_size']} of {result['capacity']:,} drawn",
        f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, {result['hardware']['cores']} cores, "
        f"jax {result['versions']['jax']}, flashbax {result['versions']['flashbax']}",
        table(["", "copies", "jaxrl, µs", "flashbax, µs", "flashbax / jaxrl", "≥ 1"], rows),
        "Time of one iteration of all copies in one program: medians over rounds in which both libraries take turns. Prioritised "
        "replay also writes new priorities for the rows drawn.",
    ]
    return "\n\n".join(lines)

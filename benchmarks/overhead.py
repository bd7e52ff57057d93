"""Cost of checkpoints and logs in a run, measured on alternating chunks with and without them, and of a loaded policy's call."""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.markdown import table
from benchmarks.record import write_result
from jaxrl import make_ppo
from jaxrl.runtime.checkpoint.saver import Saver
from jaxrl.runtime.console.progress import make_progress
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.runtime.logs.run_folder import RunFolder
from jaxrl.runtime.trainers.device_layout import open_fused
from jaxrl.runtime.training_loop.plan import make_plan
from jaxrl.runtime.training_loop.run_config import Checkpoints, Evaluations, Members, RunConfig
from jaxrl.runtime.training_loop.run_files import RunFiles
from jaxrl.runtime.training_loop.session import Session
from jaxrl.types import Agent

SEEDS = list(range(8))
CHECKPOINT_SECONDS = 10.0
LIMITS = {"checkpoint": 0.03, "logs": 0.02}
"""Largest share of the time: for a checkpoint every 10 s, and for a record per second."""
POLICY_SECONDS = 0.2e-3
"""Largest CPU time of one call of a loaded policy."""


def measure(pairs: int, chunk_seconds: float, out: Path) -> dict[str, Any]:
    """Time ``pairs`` pairs of chunks for checkpoints and for logs. Write ``overhead.json``."""
    agent = make_ppo("CartPole-v1")
    driver = open_fused(agent, SEEDS)[0]
    states, *_ = driver.iterate(driver.init(), 20)
    begin = time.perf_counter()
    states, *_ = jax.block_until_ready(driver.iterate(states, 200))
    iterations = max(1, round(200 * chunk_seconds / (time.perf_counter() - begin)))

    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "run")
        checkpoints, evaluation = Checkpoints(checkpoint_every=0), Evaluations(eval_every=0)
        config = RunConfig(10**9, Members(SEEDS), iterations, evaluation=evaluation, checkpoints=checkpoints)
        plan = make_plan(agent, config)
        files = RunFiles(folder, agent, plan, jax.devices(), lambda text: None)
        session = Session(driver, SEEDS, plan, make_progress("", plan.total_steps, quiet=True), files)
        about: dict[str, Any] = {"spec": agent.spec, "request": plan.request(), "note": lambda text: None}
        saver = Saver(RunFolder(Path(name) / "saved"), **about, every=1e-9, keep=3)
        step = itertools.count(1)

        def plain(states: Any) -> Any:
            states, metrics, _ = driver.iterate(states, iterations)
            session.fetch(metrics)
            return states

        def saving(states: Any) -> Any:
            saver.begin(states, next(step))
            return plain(states)

        def logging(states: Any) -> Any:
            return session.chunk(states, session.trained + iterations)[0]

        extra = {}
        for label, chunk in (("checkpoint", saving), ("logs", logging)):
            states, extra[label] = paired_chunks(states, plain, chunk, pairs, label)
        saver.close()
        files.close()
        folder.close()
    measured = {"chunk_seconds": chunk_seconds, "extra_seconds": extra, "policy_seconds": policy_calls(agent)}
    return write_result(out, "overhead", **measured)


def policy_calls(agent: Agent, calls: int = 1000, repeats: int = 20) -> dict[str, list[float]]:
    """Measure the CPU seconds, over all threads, per call of a policy as returned by ``load_policy``; one value per repeat."""
    policy = agent.algorithm.policy(agent.init(jax.random.key(0)).learner)
    loaded = LoadedPolicy(agent, policy, seed=0, step=0, key=jax.random.key(1))
    found = {}
    for label, obs, explore in (
        ("greedy", np.zeros(4, np.float32), False),
        ("explore", np.zeros(4, np.float32), True),
        ("batch of 64", np.zeros((64, 4), np.float32), False),
    ):
        seconds = []
        for _ in range(repeats + 1):  # the first compiles
            begin = time.process_time()
            for _ in range(calls):
                loaded(obs, explore=explore)
            seconds.append((time.process_time() - begin) / calls)
        found[label] = seconds[1:]
    return found


def paired_chunks(
    states: Any, plain: Callable[[Any], Any], other: Callable[[Any], Any], pairs: int, label: str
) -> tuple[Any, list[float]]:
    """Return the final states and the extra seconds of ``other`` over ``plain`` for each pair. The order alternates."""
    differences = []
    for pair in range(-2, pairs):  # the first two do not count
        seconds = {}
        for chunk in (plain, other) if pair % 2 else (other, plain):
            begin = time.perf_counter()
            states = chunk(states)
            seconds[chunk] = time.perf_counter() - begin
        differences.append(seconds[other] - seconds[plain])
        print(f"\r{label}: {max(pair, 0) + 1} of {pairs} pairs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return states, differences[2:]


def shares(result: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return each one's share of the time as (median, low, high), with a 95 % bootstrap interval of the median."""
    every = {"checkpoint": CHECKPOINT_SECONDS, "logs": result["chunk_seconds"]}
    found = {}
    for name, extra in result["extra_seconds"].items():
        share = np.asarray(extra) / every[name]
        drawn = np.random.default_rng(0).choice(share, (2000, len(share)))
        low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
        found[name] = (float(np.median(share)), float(low), float(high))
    return found


def overhead_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    titles = {"checkpoint": "a checkpoint every 10 s", "logs": f"a record every {result['chunk_seconds']:g} s, all logs"}
    rows = []
    for name, (share, low, high) in shares(result).items():
        met = "yes" if share < LIMITS[name] else "NO"
        rows.append([titles[name], f"< {LIMITS[name]:.0%}", f"{share:.2%} ({low:.2%} to {high:.2%})", met])
    lines = [
        "## Cost of checkpoints and logs: PPO on CartPole, 8 seeds",
        f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, {result['hardware']['cores']} cores, "
        f"jax {result['versions']['jax']}, orbax-checkpoint {result['versions']['orbax-checkpoint']}",
        table(["", "required", "share of the time", "met"], rows),
        "Median over alternating pairs of chunks with and without it (95 % bootstrap interval).",
    ]
    if "policy_seconds" in result:  # older results lack it
        limit = f"< {POLICY_SECONDS * 1e3:g} ms"
        calls = [
            [name, limit, f"{np.median(seconds) * 1e3:.3f} ms", "yes" if np.median(seconds) < POLICY_SECONDS else "NO"]
            for name, seconds in result["policy_seconds"].items()
        ]
        lines += [table(["load_policy(…)(obs)", "required", "CPU time per call", "met"], calls)]
    return "\n\n".join(lines)


def missed(result: Mapping[str, Any]) -> bool:
    slow = any(np.median(seconds) >= POLICY_SECONDS for seconds in result.get("policy_seconds", {}).values())
    return slow or any(share >= LIMITS[name] for name, (share, _, _) in shares(result).items())

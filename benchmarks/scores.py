"""Scores: train all seeds in one jit, evaluate greedily at the end, keep the evidence. Interrupted, the same command goes on."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxrl
from benchmarks import machine
from benchmarks.experiments import Experiment
from jaxrl.runtime import checkpoint, logs
from jaxrl.runtime.devices import request_cpu_devices, seed_devices
from jaxrl.runtime.folder import plain
from jaxrl.runtime.fused import FusedDriver
from jaxrl.runtime.manifest import installed_versions
from jaxrl.runtime.plots import learning_curve
from jaxrl.runtime.progress import duration, short
from jaxrl.training import num_iterations
from jaxrl.types import Agent, PyTree

NUM_CHUNKS = 50
"""Per experiment: points of the learning curve, lines of progress, checkpoints."""
CURVES = ("env_steps", logs.TRAINING_RETURN)
Say = Callable[[str], None]


class Progress(NamedTuple):
    """What a checkpoint holds."""

    states: PyTree
    history: dict[str, np.ndarray]
    """f64[num_chunks, num_seeds] per curve; NaN where nothing has come yet."""
    train_seconds: np.ndarray
    """f64[]: without compilation and evaluation, over all sessions."""


def run_experiment(
    experiment: Experiment, out: Path, work: Path, *, force: bool = False, say: Say = print, chunks: int = NUM_CHUNKS
) -> dict[str, Any]:
    """Run an experiment to its end, or read what an equal one left.

    Args:
      out: gets ``NAME.json`` and ``NAME.png``.
      work: holds the checkpoints in ``NAME/`` until the end.
      force: run it even if its result, or a part of it, is there.
      say: is called with a line of progress per chunk.
      chunks: about so many of them.

    Returns:
      The contents of ``NAME.json``.
    """
    path, folder = out / f"{experiment.name}.json", work / experiment.name
    if force:
        shutil.rmtree(folder, ignore_errors=True)
    elif (done := finished(path, experiment)) is not None:
        say(f"{experiment.name}: already there, in {path} (--force runs it again)")
        return done
    result, history = train_and_evaluate(experiment, folder, say, chunks)
    out.mkdir(parents=True, exist_ok=True)
    verdict = "passed" if result["passed"] else "NOT passed"
    title = f"{result['agent']} · {experiment.env} · {experiment.num_seeds} seeds"
    low, high = result["interval"]
    subtitle = f"greedy return at the end: {result['mean']:.1f} [{low:.1f}, {high:.1f}]; asked: {experiment.asked}, {verdict}"
    learning_curve(history, path.with_suffix(".png"), title=title, subtitle=subtitle)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    say(f"{experiment.name}: {subtitle}; trained in {duration(result['train_seconds'])}")
    return result


def describe(experiment: Experiment) -> dict[str, Any]:
    """The experiment as it comes back from JSON; equal settings are equal here."""
    return json.loads(json.dumps(experiment._asdict()))


def finished(path: Path, experiment: Experiment) -> dict[str, Any] | None:
    """The result of the same experiment, if it is there."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return result if result.get("experiment") == describe(experiment) else None


def build_agent(experiment: Experiment) -> Agent:
    request_cpu_devices()  # building an environment may start JAX's backend
    settings = dict(experiment.settings)
    if settings.get("anneal"):
        settings["total_steps"] = experiment.total_steps
    return getattr(jaxrl, experiment.builder)(experiment.env, **settings)


# -------------------------------------------------------------------------------------------------------------------- training


def train_and_evaluate(
    experiment: Experiment, folder: Path, say: Say, chunks: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """``(result, history)``."""
    begin = time.perf_counter()
    agent, seeds = build_agent(experiment), list(range(experiment.num_seeds))
    devices, _ = seed_devices(len(seeds))
    driver = FusedDriver(agent, seeds, devices)
    iterations = num_iterations(agent, experiment.total_steps)
    progress = train(driver, agent, experiment, iterations, folder, say, chunks)
    warmup = agent.algorithm.warmup_iterations
    returns, _ = jax.device_get(driver.evaluate(progress.states, warmup + iterations, experiment.episodes))
    scores = np.asarray(returns, np.float64).mean(axis=1)
    result = {
        "name": experiment.name,
        "agent": experiment.builder.removeprefix("make_").upper(),
        "experiment": describe(experiment),
        "asked": experiment.asked,
        "passed": experiment.passes(scores.tolist()),
        "mean": float(scores.mean()),
        "interval": bootstrap_interval(scores),
        "scores": scores.tolist(),
        "seeds": seeds,
        "total_steps": (warmup + iterations) * agent.steps_per_iteration,
        "train_seconds": float(progress.train_seconds),
        "compile_seconds": driver.compile_seconds,
        "last_session_seconds": time.perf_counter() - begin,
        "command": machine.command(),
        "date": machine.now(),
        "versions": {"python": platform.python_version()} | installed_versions(),
        "hardware": machine.hardware() | {"devices": [f"{device.platform}:{device.id}" for device in devices]},
        "spec": plain(agent.spec),
        "history": {name: blanks(curve) for name, curve in progress.history.items()},
    }
    return result, progress.history


def train(
    driver: FusedDriver, agent: Agent, experiment: Experiment, iterations: int, folder: Path, say: Say, chunks: int
) -> Progress:
    """All chunks that are still to do, a checkpoint after each."""
    size = -(-iterations // chunks)
    number_of_chunks = -(-iterations // size)
    warmup_steps = agent.algorithm.warmup_iterations * agent.steps_per_iteration
    empty = {name: np.full((number_of_chunks, experiment.num_seeds), np.nan) for name in CURVES}
    spec = describe(experiment) | {"chunks": chunks}
    start, progress = resume(folder, Progress(driver.init(), empty, np.zeros(())), spec, say)
    if start:
        say(f"{experiment.name}: goes on from step {warmup_steps + start * size * agent.steps_per_iteration:,}")
    for chunk in range(start, number_of_chunks):
        now = min(size, iterations - chunk * size)
        begin, compiled = time.perf_counter(), driver.compile_seconds
        states, metrics = driver.advance(progress.states, now)
        metrics = jax.device_get(metrics)
        seconds = time.perf_counter() - begin - (driver.compile_seconds - compiled)
        valid = logs.env_steps(metrics, now * agent.steps_per_iteration)
        before = progress.history["env_steps"][chunk - 1] if chunk else float(warmup_steps)
        progress.history["env_steps"][chunk] = before + valid
        progress.history[logs.TRAINING_RETURN][chunk] = returns = logs.close_per_seed(metrics)[logs.TRAINING_RETURN]
        progress = Progress(states, progress.history, np.asarray(progress.train_seconds + seconds))
        checkpoint.save(folder, progress, chunk + 1, spec=spec, keep=2)
        known = returns[~np.isnan(returns)]
        say(
            f"{experiment.name}: step {warmup_steps + (chunk * size + now) * agent.steps_per_iteration:,} of "
            f"{experiment.total_steps:,}  return {known.mean() if known.size else float('nan'):.1f}  "
            f"{short(valid.sum() / seconds)} env steps/s  ETA {duration(seconds / now * (iterations - chunk * size - now))}"
        )
    return progress


def resume(folder: Path, fresh: Progress, spec: dict[str, Any], say: Say) -> tuple[int, Progress]:
    """``(chunks done, progress)``: the last checkpoint if it is of the same experiment, else from the beginning."""
    if checkpoint.latest_step(folder) is None:
        return 0, fresh
    if checkpoint.read_info(folder).spec != spec:
        say(f"{folder}: checkpoints of other settings, deleted")
        shutil.rmtree(folder)
        return 0, fresh
    progress, info = checkpoint.restore(folder, fresh)
    return info.step, progress


def blanks(curve: np.ndarray) -> list[list[float | None]]:
    """A curve as JSON has it: None rather than NaN."""
    return [[None if np.isnan(x) else round(x, 3) for x in row] for row in curve.tolist()]


def bootstrap_interval(scores: np.ndarray) -> list[float]:
    """The 95 % interval of the mean over seeds."""
    from scipy.stats import bootstrap

    if len(scores) < 2 or np.ptp(scores) == 0:  # scipy needs two, and warns where all are equal
        return [float(scores.min()), float(scores.max())]
    interval = bootstrap((scores,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return [float(interval.low), float(interval.high)]

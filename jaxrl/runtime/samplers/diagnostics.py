"""Metrics of runs on host environments: time per part, policy lag, gradient staleness, replay ratio."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax.numpy as jnp
import numpy as np

from jaxrl.types import Agent, Array, Max, Mean, Metrics

PARTS = ("environments", "inference", "learning", "waiting")
"""Parts of the run time: stepping or waiting for environments; acting; learning; waiting for another thread to collect."""

LAG, MOST_LAG, STALENESS = "charts/policy_lag", "charts/policy_lag_max", "charts/gradient_staleness"
RESTARTS = "charts/worker_restarts"
UPDATES, REPLAY_RATIO = "charts/updates_per_second", "charts/replay_ratio"
TIMED = (UPDATES, *(f"time/{part}" for part in PARTS))
"""Log keys of measurements that depend on a clock."""

LOGGED = (LAG, MOST_LAG, REPLAY_RATIO, *TIMED)
"""Log keys of runs on host environments, in addition to those of all runs."""

OF_WORKERS = (RESTARTS, STALENESS)
"""Log keys of runs with worker processes; the second if workers compute gradients."""


class Stopwatch:
    """Seconds spent so far, by ``PARTS``."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start


def policy_lag(version: Array, rollout: Array) -> Metrics:
    """Return the age of the parameters that acted (``Rollout.version``, i32[B]), in updates behind those that learn (i32[])."""
    lag = (version - rollout).astype(jnp.float32)
    return {LAG: Mean(lag.sum(), jnp.full((), lag.size, jnp.int32)), MOST_LAG: Max(lag.max())}


def gradient_staleness(version: Array, used: Array) -> Metrics:
    """Return the age of the parameters that a gradient was computed with (``used``, i32[B]), in updates, when it is applied."""
    return {STALENESS: policy_lag(version, used)[LAG]}


def timed(agent: Agent, metrics: Metrics, spent: Mapping[str, float], seconds: float, iterations: int) -> Metrics:
    """Return speed, replay ratio and shares of time of these iterations, per seed: [num_seeds], as in ``metrics``.

    Args:
      spent: seconds, by ``PARTS``.
      seconds: elapsed time.
    """
    shape, settings = np.shape(metrics[LAG].sum), agent.spec.get("settings", {})  # type: ignore[union-attr]
    gradients = metrics.get("losses/grad_norm")
    updates = np.asarray(gradients.count) if isinstance(gradients, Mean) else np.full(shape, iterations)

    def mean(total: float | np.ndarray, count: float) -> Mean:
        return Mean(np.broadcast_to(np.float64(total), shape), np.full(shape, count, np.float64))  # type: ignore[arg-type]

    ratio, rows = settings.get("replay_ratio", settings.get("num_epochs", 1)), iterations * agent.steps_per_iteration
    shares = {f"time/{part}": mean(each, seconds) for part, each in spent.items()}
    return {UPDATES: mean(updates, seconds), REPLAY_RATIO: mean(ratio * rows, rows), **shares}

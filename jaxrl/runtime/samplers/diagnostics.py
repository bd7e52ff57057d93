"""How a run on host environments spends its time, and how old its data are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxrl.types import Agent, Array, Max, Mean, Metrics

PARTS = ("environments", "inference", "learning", "waiting")
"""What time is spent on: environments, stepped or waited for; acting; learning; waiting for what another thread collects."""

LAG, MOST_LAG, STALENESS = "charts/policy_lag", "charts/policy_lag_max", "charts/gradient_staleness"
RESTARTS = "charts/worker_restarts"
UPDATES, REPLAY_RATIO = "charts/updates_per_second", "charts/replay_ratio"
TIMED = (UPDATES, *(f"time/{part}" for part in PARTS))
"""Log keys of what a clock says."""

LOGGED = (LAG, MOST_LAG, REPLAY_RATIO, *TIMED)
"""Log keys of runs on host environments, besides those of all runs."""

OF_WORKERS = (RESTARTS, STALENESS)
"""Those of runs with worker processes; the second where workers compute gradients."""


class WorkerState(NamedTuple):
    """What a run shows of a worker process."""

    steps_per_second: float
    """While it collects: rows, over its environments of all seeds."""
    lag: float
    """How many updates older than the newest parameters those were by which it acted; mean over its rollouts and seeds."""
    restarts: int


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


def policy_lag(now: Array, rollout: Array) -> Metrics:
    """How many updates older than those that learn the parameters are that acted.

    Args:
      now: i32[], the version of the parameters that learn.
      rollout: i32[B], ``Rollout.version``.
    """
    lag = (now - rollout).astype(jnp.float32)
    return {LAG: Mean(lag.sum(), jnp.full((), lag.size, jnp.int32)), MOST_LAG: Max(lag.max())}


def gradient_staleness(now: Array, then: Array) -> Metrics:
    """How many updates older than those that it is applied to the parameters are of which a gradient is.

    Args:
      now: i32[], the version of those that it is applied to.
      then: i32[B], of those of which it is.
    """
    return {STALENESS: policy_lag(now, then)[LAG]}


def timed(agent: Agent, metrics: Metrics, spent: Mapping[str, float], seconds: float, iterations: int) -> Metrics:
    """What so many iterations took, of each seed: [num_seeds], as ``metrics`` are.

    Args:
      spent: seconds, by ``PARTS``.
      seconds: that passed.
    """
    shape, settings = np.shape(metrics[LAG].sum), agent.spec.get("settings", {})  # type: ignore[union-attr]
    gradients = metrics.get("losses/grad_norm")
    updates = np.asarray(gradients.count) if isinstance(gradients, Mean) else np.full(shape, iterations)

    def mean(total: float | np.ndarray, count: float) -> Mean:
        return Mean(np.broadcast_to(np.float64(total), shape), np.full(shape, count, np.float64))  # type: ignore[arg-type]

    ratio, rows = settings.get("replay_ratio", settings.get("num_epochs", 1)), iterations * agent.steps_per_iteration
    shares = {f"time/{part}": mean(each, seconds) for part, each in spent.items()}
    return {UPDATES: mean(updates, seconds), REPLAY_RATIO: mean(ratio * rows, rows), **shares}

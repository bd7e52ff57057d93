"""Statistics over seeds: aggregates and bootstrap intervals."""

from __future__ import annotations

import numpy as np

METRICS = {"iqm": 0.25, "mean": 0.0}
"""Share of the seeds that is removed at either end before averaging."""
METRIC_NAMES = {"iqm": "interquartile mean", "mean": "mean"}


def trimmed_mean(values: np.ndarray, cut: float) -> np.ndarray:
    """Compute the mean along the last axis without the ``int(cut · n)`` lowest and highest of its n values that are not NaN.

    ``cut=0.25`` is the interquartile mean of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice": less noisy than the median, and less sensitive to one lucky seed than the mean. With fewer than 4 values it is the
    mean.

    Returns:
      The mean, without the last axis; NaN where there are no values.
    """
    ordered = np.sort(values, axis=-1)  # NaN comes last
    number = (~np.isnan(values)).sum(-1, keepdims=True)
    dropped, rank = (cut * number).astype(int), np.arange(values.shape[-1])
    kept = (rank >= dropped) & (rank < number - dropped)
    total, count = np.where(kept, ordered, 0).sum(-1), kept.sum(-1)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def mean_steps(env_steps: np.ndarray, diverged: np.ndarray) -> np.ndarray:
    """Compute the mean environment steps of the seeds, f64[num_chunks], without those that diverged before others.

    The steps of a seed that diverged stop, so with them the others would be placed too early. They are left out of all chunks,
    since the mean would jump where they stop.

    Args:
      env_steps: f64[num_chunks, num_seeds].
      diverged: bool[num_chunks, num_seeds].
    """
    trained = (~np.asarray(diverged, bool)).sum(axis=0)
    return np.asarray(env_steps)[:, trained == trained.max()].mean(axis=1)


def seed_interval(
    values: np.ndarray, *, metric: str = "iqm", strata: np.ndarray | None = None, resamples: int = 2000, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute a statistic over seeds and its percentile bootstrap interval at each point.

    A resample draws seeds with replacement, the same ones at every point, and from each stratum as many as it has: the stratified
    bootstrap of Agarwal et al. 2021, section 4.1, in which strata are tasks. The draws are the same in every call.

    Args:
      values: f64[num_points, num_seeds]; NaN where a seed has no value. At every point, at least one seed must have a value.
      metric: a key of ``METRICS``.
      strata: i64[num_seeds], stratum of each seed; None for a single stratum.

    Returns:
      (statistic, low, high), f64[num_points] each.
    """
    drawn = _resample(np.zeros(values.shape[1], int) if strata is None else strata, resamples)
    cut, ends = METRICS[metric], [(1 - level) / 2, (1 + level) / 2]
    low, high = np.transpose([np.nanquantile(trimmed_mean(row[drawn], cut), ends) for row in values])
    return trimmed_mean(values, cut), low, high


def _resample(strata: np.ndarray, resamples: int) -> np.ndarray:
    """Draw the seeds of each resample, i64[resamples, num_seeds]: each position is drawn from its stratum."""
    rng = np.random.default_rng(0)
    drawn = np.empty((resamples, len(strata)), int)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        drawn[:, members] = members[rng.integers(len(members), size=(resamples, len(members)))]
    return drawn

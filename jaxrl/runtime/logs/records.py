"""Records: the logged values of a run after each chunk, and their history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # records are read without JAX
    from jaxrl.types import Max, Mean, Metrics, Min

EVALUATION_RETURN, EVALUATION_LENGTH = "evaluation/episodic_return", "evaluation/episodic_length"
EVALUATION_EPISODES, EVALUATION_LONGEST = "evaluation/episodes", "evaluation/longest_episode"
EVALUATION_TIME = "time/evaluation"
OF_EVALUATIONS = (EVALUATION_RETURN, EVALUATION_LENGTH, EVALUATION_EPISODES, EVALUATION_LONGEST, EVALUATION_TIME)
TRAINING_RETURN = "charts/episodic_return"
FIRST_COLUMNS = ("seed", "iteration", "rows", "env_steps", "seconds", "sps", "diverged")

Record = dict[str, Any]
"""Values of one chunk: scalars of the entire run, and arrays [num_seeds]; NaN where nothing was counted."""


def close_per_seed(metrics: Metrics) -> dict[str, np.ndarray]:
    """Convert metrics [num_seeds] to numbers, f64[num_seeds]; NaN where nothing was counted or the result is not finite."""
    from jaxrl.types import Mean

    def close(metric: Mean | Min | Max) -> np.ndarray:
        if isinstance(metric, Mean):
            total, count = np.asarray(metric.sum, np.float64), np.asarray(metric.count, np.float64)
            value = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
        else:
            value = np.asarray(metric.value, np.float64)
        return np.where(np.isfinite(value), value, np.nan)

    return {name: close(metric) for name, metric in metrics.items()}


def env_steps(metrics: Metrics, num_rows: int) -> np.ndarray:
    """Return the number of valid rows among ``num_rows``, i64[num_seeds]; all of them if the algorithm does not count."""
    import jax

    from jaxrl.types import Mean

    if (counted := metrics.get("charts/valid_rows")) is not None and isinstance(counted, Mean):
        return np.rint(np.asarray(counted.sum, np.float64)).astype(np.int64)
    return np.full(np.shape(jax.tree.leaves(metrics)[0]), num_rows)


def as_arrays(records: Sequence[Record]) -> dict[str, np.ndarray]:
    """Return the history of a run: key -> [num_chunks] or [num_chunks, num_seeds]; NaN in chunks without the key."""
    examples = {key: np.asarray(value) for record in records for key, value in record.items()}
    return {
        key: np.stack([np.asarray(record.get(key, np.full(example.shape, np.nan))) for record in records])
        for key, example in examples.items()
    }


def known_rows(history: Mapping[str, np.ndarray], key: str) -> list[np.ndarray]:
    """Return the values of a key, [num_seeds] each, for the chunks in which at least one seed has a value."""
    return [row for row in history.get(key, ()) if not np.isnan(row).all()]


def mean_over_seeds(values: np.ndarray) -> float:
    """Return the mean over the seeds that have a value; −inf if there are none."""
    return float(np.nanmean(values)) if not np.isnan(values).all() else -np.inf

"""Metrics, whose parts combine."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jaxrl.types.arrays import Array


class Mean(NamedTuple):
    """A weighted mean as sum and count: parts combine by addition, and the ratio is taken on the host.

    ``float`` returns the ratio over all elements, ``np.asarray`` one ratio per element; NaN where nothing was counted.
    ``jaxrl.metrics.to_floats`` converts all metrics at once.
    """

    sum: Array
    count: Array  # type: ignore[assignment]  # a field may hide tuple.count

    def __float__(self) -> float:
        total, count = (np.sum(np.asarray(x), dtype=np.float64) for x in self)
        return float(_ratio(np.asarray(total), np.asarray(count)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _ratio(np.asarray(self.sum, np.float64), np.asarray(self.count, np.float64)).astype(dtype or np.float64)


class Min(NamedTuple):
    """A running minimum; +inf if there were no values, which ``float`` and ``np.asarray`` convert to NaN."""

    value: Array

    def __float__(self) -> float:
        return float(_seen(np.min(np.asarray(self.value))))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _seen(np.asarray(self.value)).astype(dtype or np.float64)


class Max(NamedTuple):
    """A running maximum; -inf if there were no values, which ``float`` and ``np.asarray`` convert to NaN."""

    value: Array

    def __float__(self) -> float:
        return float(_seen(np.max(np.asarray(self.value))))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _seen(np.asarray(self.value)).astype(dtype or np.float64)


def _ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def _seen(value: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(value), value, np.nan)


Metrics: TypeAlias = dict[str, Mean | Min | Max]
"""Flat, with the log keys of CleanRL (``charts/episodic_return``, ``losses/value_loss``, ...)."""

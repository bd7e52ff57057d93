"""Successive halving without idle lanes: when trials are tested, and which of them continue.

A. Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (ASHA), with decisions at fixed boundaries, in the
order of slots, so that they do not depend on time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST_RESULTS = 8
"""Results at a rung before any trial is stopped there."""


class Rungs(NamedTuple):
    """Ages at which trials are tested, in parts of a training."""

    ages: tuple[int, ...]
    """Age of a trial at each rung, in parts. The last is the end."""
    parts: int
    """Number of parts of a whole training, of equal length but for whole iterations."""

    @classmethod
    def from_shares(cls, shares: Sequence[float], at_least: int = 1) -> Rungs:
        """Return the rungs at these shares of a training, which are whole percents, increase, and end with 1.

        Args:
          at_least: smallest number of parts.
        """
        percents = [round(100 * share) for share in shares]
        whole = all(abs(100 * share - percent) < 1e-6 for share, percent in zip(shares, percents, strict=True))
        if not percents or not whole or percents[-1] != 100 or percents[0] < 1 or sorted({*percents}) != percents:
            raise ValueError(
                f"rungs = {[*shares]} must be shares in whole percents that increase and end with 1.0, such as [0.1, 0.3, 1.0]"
            )
        part = math.gcd(*percents)
        if 100 // part < at_least:
            part = next(size for size in range(100 // at_least, 0, -1) if part % size == 0)
        return cls(tuple(percent // part for percent in percents), 100 // part)

    def iterations(self, age: int, of: int) -> int:
        """Return the iterations that a trial has trained at an age, if a whole training has ``of``: the nearest to its share."""
        return (2 * age * of + self.parts) // (2 * self.parts)

    def check_iterations(self, of: int) -> None:
        """Raise ValueError unless a training of this length has an iteration for each part."""
        if of < self.parts:
            raise ValueError(
                f"the rungs divide a training into {self.parts} parts, and it has only {of} iteration{'s' * (of != 1)}: raise "
                "total_steps, lower num_envs or rollout_length, or give rungs with fewer parts ([0.1, 0.3, 1.0] has 10, "
                '[0.5, 1.0] has 2, and the objective "auc" at least 10)'
            )


def continues(score: float, scores: Sequence[float], keep: float) -> bool:
    """Return whether a trial is among the best share ``keep`` of all that ever reached its rung; equal scores are among them.

    Args:
      scores: those of all trials at the rung, this one's included. NaN is worse than any number.
    """
    if len(scores) < LEAST_RESULTS:
        return True
    if math.isnan(score):
        return False
    better = np.sum(np.nan_to_num(np.asarray(scores), nan=-np.inf) > score)
    return bool(better < math.ceil(keep * len(scores)))

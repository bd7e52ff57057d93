"""Dip of the score at the start of fine-tuning: how much a policy that was learnt offline loses at first online."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxrl.runtime.logs.records import EVALUATION_RETURN, mean_over_seeds

EARLY = 0.1
"""Fraction of the run's steps in which a dip is looked for."""


def dip(history: Mapping[str, np.ndarray], total_steps: int) -> tuple[float, float] | None:
    """Return ``(before, lowest)``, evaluation returns as means over seeds: that before the first step, and the lowest one in the
    first tenth of the run, which may be the same.

    Return None without an evaluation before the first step, or without any in that tenth.
    """
    returns, steps = history.get(EVALUATION_RETURN, ()), history.get("rows", ())
    known = [(int(step), mean_over_seeds(row)) for step, row in zip(steps, returns, strict=True) if not np.isnan(row).all()]
    early = [score for step, score in known if 0 < step <= EARLY * total_steps]
    if not known or known[0][0] > 0 or not early:
        return None
    return known[0][1], min(known[0][1], *early)

"""Detection of greedy evaluations far below training returns, which are unsuitable for choosing the best policy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN, known_rows

FAR = 0.5
"""Minimum gap, as a share of the larger absolute return of the two."""
WIDE = 0.1
"""Minimum gap, as a share of the range of training's last episodes; smaller gaps may be chance."""

CHUNKS = 5
"""Minimum number of chunks in which episodes ended; fewer returns say little about progress."""


def greedy_gap(history: Mapping[str, np.ndarray]) -> tuple[float, float] | None:
    """Return ``(greedy, training)``, the returns at a run's last evaluation as means over seeds, if the first is far below the
    second.

    Else return None, also if the run had learnt nothing by then.
    """
    names = (EVALUATION_RETURN, TRAINING_RETURN, f"{TRAINING_RETURN}_min", f"{TRAINING_RETURN}_max")
    evaluated = [i for i, row in enumerate(history.get(EVALUATION_RETURN, ())) if not np.isnan(row).all()]
    until = evaluated[-1] + 1 if evaluated else 0
    known = [known_rows({name: rows[:until] for name, rows in history.items()}, name) for name in names]
    if not all(known) or len(known[1]) < CHUNKS:
        return None
    greedy, training, lowest, highest = (float(np.nanmean(rows[-1])) for rows in known)
    chance = WIDE * (highest - lowest)
    learnt = training - float(np.nanmean(known[1][0])) > chance
    far = max(FAR * max(abs(greedy), abs(training)), chance)
    return (greedy, training) if learnt and training - greedy > far else None

"""Greedy evaluations that are far below training: what is best by them may be no good."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN, known_rows

FAR = 0.5
"""Of the larger one of the two returns."""
WIDE = 0.1
"""Of what lies between the worst and the best of training's last episodes: less may be chance."""

CHUNKS = 5
"""In which episodes ended: the returns of fewer say little of what was learnt."""


def greedy_gap(history: Mapping[str, np.ndarray]) -> tuple[float, float] | None:
    """``(greedy, training)``, the last returns of a run, mean over seeds, where the first is far below the second; else None, as
    for a run that has learnt nothing yet."""
    names = (EVALUATION_RETURN, TRAINING_RETURN, f"{TRAINING_RETURN}_min", f"{TRAINING_RETURN}_max")
    known = [known_rows(history, name) for name in names]
    if not all(known) or len(known[1]) < CHUNKS:
        return None
    greedy, training, lowest, highest = (float(np.nanmean(rows[-1])) for rows in known)
    chance = WIDE * (highest - lowest)
    learnt = training - float(np.nanmean(known[1][0])) > chance
    far = max(FAR * max(abs(greedy), abs(training)), chance)
    return (greedy, training) if learnt and training - greedy > far else None

"""Reference returns of environments, with which scores of offline learning are normalised (Fu et al. 2020)."""

from __future__ import annotations

import re

import numpy as np

REFERENCES = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
}
"""MuJoCo environment -> mean return of random actions, and of the expert of D4RL."""


def normalized_score(env: str, returns: np.ndarray | float) -> np.ndarray | None:
    """Return 100 · (return − random) / (expert − random), or None for an environment without references.

    Args:
      env: name or id of an environment, such as "envpool:HalfCheetah-v4"; its version is ignored, as in D4RL's tables.
    """
    name = re.sub(r"-v\d+$", "", env.rpartition(":")[2].partition("?")[0].partition("|")[0])
    if name not in REFERENCES:
        return None
    random, expert = REFERENCES[name]
    return 100.0 * (np.asarray(returns, np.float64) - random) / (expert - random)

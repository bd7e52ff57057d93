"""Records of three seeds, as passed to trackers."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.runtime.logs.records import Record

SEEDS = [3, 8]


def record(iteration: int, **more: Any) -> Record:
    return {
        "iteration": iteration,
        "rows": iteration * 10,
        "env_steps": np.array([iteration * 9, iteration * 10]),
        "seconds": iteration / 3,
        "sps": 1e5 / 7,
        "diverged": np.array([False, False]),
        "charts/episodic_return": np.array([iteration / 7, np.nan]),
        "losses/value_loss": np.array([np.pi * iteration, 1e-20]),
        **more,
    }

"""A slow environment in Python, which waits as if for a simulator: ``gymnasium:benchmarks.waiting:Waiting``."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SECONDS = 0.005
"""Duration of a step."""


class Waiting(gymnasium.Env):
    """An environment that shows the last action. An episode has 100 steps."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (4,), np.float32), spaces.Discrete(2)

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        self.time += 1
        return np.full(4, action, np.float32), float(action), False, self.time >= 100, {}

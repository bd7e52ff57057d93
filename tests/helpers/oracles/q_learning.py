"""Batches of random rows for losses of Q-values, and the sizes of their networks."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from jaxrl.replay.transitions import Transitions
from jaxrl.rollout.autoreset import first_input

N, FEATURES, ACTIONS = 12, 3, 4
"""Numbers of rows, of features of an observation, and of actions."""


def loss_case(seed: int, outputs: int = ACTIONS) -> tuple[np.ndarray, np.ndarray, Transitions]:
    """Return two matrices f32[FEATURES, outputs], of a network and its target network, and a batch of N rows."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    inputs, after = (first_input(normal(N, FEATURES), spaces.Discrete(ACTIONS), N) for _ in range(2))
    action = rng.integers(ACTIONS, size=N).astype(np.int32)
    terminated, valid = rng.random((2, N)) < np.array([[0.3], [0.7]])
    discount = np.where(terminated, 0, rng.uniform(0.5, 1, N)).astype(np.float32)
    weight = rng.uniform(0.2, 1, N).astype(np.float32)
    batch = Transitions(inputs, after, action, normal(N), discount, weight, valid)
    return normal(FEATURES, outputs), normal(FEATURES, outputs), batch

"""Small datasets for tests."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jaxrl
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.replay.transitions import ReplayRow
from jaxrl.types import Env, HostEnv


def random_dataset(env: Env | HostEnv | str, rows: int = 200, length: int = 20, path: str | None = None) -> Dataset:
    """Return rows drawn from the spaces of an environment, in episodes of this length that terminate in turn."""
    bound: Any = jaxrl.make_env(env) if isinstance(env, str) else env
    rng = np.random.default_rng(0)
    observation, action = bound.observation_space, bound.action_space
    observation.seed(1)
    action.seed(2)
    at_end = np.arange(rows) % length == length - 1
    obs = [observation.sample() for _ in range(rows)]
    drawn = ReplayRow(
        jax.tree.map(lambda *x: np.stack(x), *obs),
        np.stack([action.sample() for _ in range(rows)]).astype(np.int32 if action.dtype.kind == "i" else np.float32),
        rng.normal(size=rows).astype(np.float32),
        np.roll(at_end & (np.arange(rows) // length % 2 == 0), -1),
        ~at_end,
    )
    return make_dataset(drawn, bound, path)

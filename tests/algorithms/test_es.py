"""ES: a generation against NumPy, members, budgets, layouts, statistics, strategies, probes, invalid settings."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from jaxrl.models import greedy_policy
from tests.helpers.agents import Tiny, small

SMALL_POLICY = partial(greedy_policy, hidden_sizes=(8,))

TINY = Tiny(
    settings={"members": 8, "episodes": 2, "horizon": 16, "model": SMALL_POLICY}, value=None, one_gradient=("CartPole-v1", {})
)

KEY = partial(jax.random.key, 0)
small_es: Any = partial(small, "es")

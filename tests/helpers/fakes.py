"""A driver that computes nothing, for tests of the training loop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.runtime import run as run_module
from jaxrl.runtime.training_loop import session as session_module
from jaxrl.types import Max, Mean
from tests.helpers.agents import small_ppo


class FakeDriver:
    """Counts iterations. Calls ``during[n]`` in the n-th call of ``iterate``, and ``during[0]`` in ``init``."""

    def __init__(self, num_seeds: int, during: dict[int, Callable[[], None]]) -> None:
        self.num_seeds, self.during, self.calls, self.closed = num_seeds, during, 0, False
        self.agent = small_ppo("CartPole-v1")
        self.scores: dict[int, float] = {}
        """Iteration -> score of its evaluation. Default: 1."""

    def init(self, hyperparams: Any = None) -> Any:
        self.during.get(0, lambda: None)()
        return {"done": jnp.zeros(self.num_seeds, jnp.int32)}

    def shapes(self, hyperparams: Any = None) -> Any:
        return {"done": jax.ShapeDtypeStruct((self.num_seeds,), jnp.int32)}

    def adopt(self, states: Any, iteration: int) -> Any:
        return states

    def iterate(self, states: Any, iterations: int, alive: Any) -> Any:
        self.calls += 1
        self.during.get(self.calls, lambda: None)()
        ones = np.ones(self.num_seeds)
        metrics = {
            "losses/loss": Mean(ones, ones),
            "charts/valid_rows": Mean(ones * iterations * 32, ones),
            "best": Max(-np.inf * ones),
        }
        return {"done": states["done"] + iterations}, metrics, alive

    def policies(self, states: Any) -> Any:
        return jax.tree.map(jnp.copy, states)

    def evaluate(self, states: Any, iteration: int, num_episodes: int, *, explore: bool) -> Any:
        score = self.scores.get(iteration, 1.0)
        return np.full((self.num_seeds, num_episodes), score), np.ones((self.num_seeds, num_episodes))

    def close(self) -> None:
        self.closed = True


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def faked(monkeypatch: pytest.MonkeyPatch, during: dict[int, Callable[[], None]]) -> FakeDriver:
    driver = FakeDriver(2, during)
    monkeypatch.setattr(run_module, "open_driver", lambda agent, seeds, **options: (driver, jax.devices()[:1], None))
    # The fake states have no learner whose total_steps could be set.
    monkeypatch.setattr(session_module, "with_total_steps", lambda states, total_steps: states)
    return driver

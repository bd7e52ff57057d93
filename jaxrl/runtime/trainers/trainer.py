"""Interface between the training loop and the drivers that train."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.runtime.trainers.non_finite import Suspects
from jaxrl.types import Agent, Metrics, PyTree

FAILURES = (WorkerFailed, EnvironmentFailed, ChildProcessError, TimeoutError)
"""Errors of environments and workers, also of environments in other processes. A run saves its states before it raises them."""


class Driver(Protocol):
    """Trains many seeds on one kind of environment."""

    agent: Agent

    def init(self, hyperparams: Any = None) -> PyTree:
        """Return the states of all seeds, warmed up."""

    def shapes(self, hyperparams: Any = None) -> PyTree:
        """Return shapes and shardings of the result of ``init``, as a target for ``restore``."""

    def adopt(self, states: PyTree, iteration: int) -> PyTree:
        """Continue from restored states; parts that do not survive on the host are created anew."""

    def mark_discontinuity(self, states: PyTree, which: np.ndarray | None = None) -> PyTree:
        """Mark in the replay buffers, if there are any, that the next rows do not follow the stored ones; donates ``states``.

        Args:
          which: bool[num_seeds]; None: all seeds.
        """

    def place(self, states: PyTree) -> PyTree:
        """Move states that a user function changed to the devices where ``iterate`` expects them.

        Python numbers, which no checkpoint can hold, become arrays.
        """

    def iterate(self, states: PyTree, iterations: int, alive: np.ndarray, /) -> tuple[PyTree, Metrics, Any]:
        """Take ``iterations`` steps of every live seed; return ``(states, metrics, alive)``, [num_seeds].

        Donates ``states``, or on the host their stored rows. A seed whose losses or parameters are no longer finite keeps its
        state from before that iteration and is no longer alive; see ``training.freezing``.
        """

    def evaluate(self, states: PyTree, iteration: int, num_episodes: int, *, explore: bool) -> tuple[Any, Any]:
        """Play episodes of every seed, greedy or as in training; return returns and lengths, [num_seeds, num_episodes]."""

    def policies(self, states: PyTree) -> PyTree:
        """Return a copy of the Policy of every seed; every leaf is [num_seeds, ...]."""

    def suspects(self, states: PyTree, which: np.ndarray) -> Suspects:
        """Return [num_seeds, num_envs]: environments that produced non-finite numbers in seeds that the last ``iterate`` froze.

        Args:
          which: bool[num_seeds], these seeds.
        """

    # Optional attributes: `failure` (an error) and `done` (iterations), if `iterate` may stop early; `after_iteration`, which is
    # called with `done` and returns True to continue, if `iterate` returns to Python after each iteration; `compile_seconds`, if
    # it times compilation; `devices_per_seed`, if devices share the environments of a seed; `close()`, if it holds resources.

"""What the loop asks of those that train."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from jaxrl.runtime.trainers.non_finite import Suspects
from jaxrl.types import Agent, Metrics, PyTree


class Driver(Protocol):
    """How one kind of environment trains many seeds."""

    agent: Agent

    def init(self, hyperparams: Any = None) -> PyTree:
        """The states of all seeds, warmed up."""

    def shapes(self, hyperparams: Any = None) -> PyTree:
        """What ``init`` gives, as shapes, with shardings: the target of ``restore``."""

    def adopt(self, states: PyTree, iteration: int) -> PyTree:
        """Go on from restored states: whatever of them does not survive on the host is made anew."""

    def mark_discontinuity(self, states: PyTree, which: np.ndarray | None = None) -> PyTree:
        """States whose replay, if they have one, knows that the next rows do not follow those stored; uses the old ones up.

        Args:
          which: bool[num_seeds]; None: of all seeds.
        """

    def place(self, states: PyTree) -> PyTree:
        """States that were changed by a function of the user's, where ``iterate`` wants them."""

    def iterate(self, states: PyTree, iterations: int, alive: np.ndarray, /) -> tuple[PyTree, Metrics, Any]:
        """``iterations`` steps of every seed that is alive: ``(states, metrics, alive)``, [num_seeds]; uses the old states up.

        A seed whose losses or parameters are no longer finite keeps its state from before that iteration, and is not alive.
        """

    def evaluate(self, states: PyTree, iteration: int, num_episodes: int, *, explore: bool) -> tuple[Any, Any]:
        """Episodes of every seed, greedy or as in training: returns and lengths, [num_seeds, num_episodes]."""

    def policies(self, states: PyTree) -> PyTree:
        """The Policy of every seed, in memory of its own; every leaf is [num_seeds, ...]."""

    def suspects(self, states: PyTree, which: np.ndarray) -> Suspects:
        """Which environments gave numbers that are not finite to the seeds ``which``, bool[num_seeds], that the last ``iterate``
        has frozen: [num_seeds, num_envs]."""

    # One that may do fewer iterations than it is asked for has `failure`, the error that it then was, and `done`. A driver that
    # knows what compilation took has `compile_seconds`; one that shares the environments of a seed out over devices,
    # `devices_per_seed`; one that holds something to release, `close()`.

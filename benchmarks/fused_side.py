"""jaxrl's side of benchmarks beside a peer's scripts: the training program of all seeds, with the driver of ``jaxrl.run``."""

from __future__ import annotations

import time
from typing import Any

import jax

import jaxrl
from benchmarks.worker import count_parameters, installed_versions, peak_memory
from jaxrl.runtime.trainers.device_layout import open_fused
from jaxrl.types import Agent, Metrics


class FusedSide:
    """The training program of all seeds of an agent."""

    def __init__(self, agent: Agent, num_seeds: int, total_steps: float, devices_per_seed: int | None = None) -> None:
        """Open the program, without compiling it.

        Args:
          total_steps: where schedules end; later than any section.
          devices_per_seed: as for ``jaxrl.run``.
        """
        self.agent, self.num_seeds, self.total_steps = agent, num_seeds, total_steps
        self.driver, _ = open_fused(agent, range(num_seeds), devices_per_seed)
        self.states: Any = None

    def compile(self) -> dict[str, Any]:
        """Compile all that training needs, and run an iteration."""
        states = self.driver.init({"total_steps": self.total_steps})
        self.states, *_ = jax.block_until_ready(self.driver.iterate(states, 1))
        return {
            "compile_seconds": self.driver.compile_seconds,
            "parameters": count_parameters(jax.tree.map(lambda x: x[0], self.states.learner.params)),
            "versions": {"jaxrl": jaxrl.__version__, **installed_versions()},
        }

    def timed(self, number: int) -> tuple[float, Metrics]:
        """Run iterations, in one call, and return the seconds and the metrics of all seeds."""
        start = time.perf_counter()
        self.states, metrics, _ = jax.block_until_ready(self.driver.iterate(self.states, number))
        return time.perf_counter() - start, metrics

    def iterate(self, number: int, unit: str, share: float = 1.0) -> dict[str, Any]:
        """Run iterations, in one call, and return the seconds and the steps of all seeds.

        Args:
          unit: name of the number of steps in the result.
          share: share of steps that count.
        """
        seconds, _ = self.timed(number)
        steps = round(number * self.agent.steps_per_iteration * self.num_seeds * share)
        return {"seconds": seconds, unit: steps, "peak_bytes": peak_memory()}

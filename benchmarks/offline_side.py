"""jaxrl's updates of a case of offline learning, with the driver of ``jaxrl.run``, and the memory that many seeds share."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

import jaxrl
from benchmarks.fused_side import FusedSide
from benchmarks.offline_cases import ACTION, BUILDERS, EPISODE, OBSERVATION, Case, from_json, random_rows
from benchmarks.protocol import serve
from jaxrl.agent import state_shapes
from jaxrl.builder.stand_in import stand_in
from jaxrl.options import Cloning
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.runtime.datasets.layouts import rows_of
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.types import Agent

SETTINGS: dict[str, dict[str, Any]] = {"iql": {}, "td3bc": {"cloning": Cloning()}, "cql": {}}
"""Settings that differ from the builder's defaults."""
CRITICS: dict[str, dict[str, Any]] = {"iql": {}, "td3bc": {"layer_norm": True}, "cql": {}}
"""Arguments of the critics' networks, as in JAX-CORL."""
TOTAL_STEPS = 1e6
"""Where schedules end: later than any section, as in JAX-CORL."""


def make_data(rows: int) -> Dataset:
    """Return the case's transitions as a dataset."""
    drawn = random_rows(rows)
    ends = np.arange(rows) % EPISODE == EPISODE - 1
    ends[-1] = True
    env = placeholder()
    return make_dataset(rows_of(drawn.obs, drawn.action, drawn.reward, drawn.terminated, ends, drawn.next_obs[ends]), env)


def placeholder() -> Any:
    """Return an environment that only has spaces."""
    observed = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    return stand_in("benchmark", observed, spaces.Box(-1.0, 1.0, (ACTION,), np.float32))


def make_agent(case: Case, data: Dataset) -> Agent:
    """Return the agent of a case: networks and batches are the peer's, and all else is at its default."""
    network = {"hidden_sizes": case.hidden_sizes, "activation": "relu"}
    networks = {"model": network, "critic": network | CRITICS[case.algorithm]}
    build = getattr(jaxrl, BUILDERS[case.algorithm])
    return build(placeholder(), data=data, batch_size=case.batch_size, **networks, **SETTINGS[case.algorithm])


class Side(FusedSide):
    """The training program of all seeds, and its memory."""

    def __init__(self, case: Case) -> None:
        super().__init__(make_agent(case, make_data(case.rows)), case.num_seeds, TOTAL_STEPS)

    def train(self, calls: int) -> dict[str, Any]:
        """Run this number of iterations."""
        return self.iterate(calls, "updates")

    def memory(self) -> dict[str, Any]:
        """Return the bytes of the program, as planned by XLA, for one seed and for all seeds of the case, on one device."""
        state = state_shapes(self.agent)
        return {
            "one": program_bytes(self.agent, 1),
            "all": program_bytes(self.agent, self.num_seeds),
            "data": bytes_of(self.agent.data),
            "state": bytes_of(state),
            "parameters": bytes_of(state.learner.params),
        }


def program_bytes(agent: Agent, num_seeds: int) -> dict[str, int]:
    """Return the bytes of states and dataset before and after an iteration, and those of everything that it computes."""
    driver = FusedDriver(agent, range(num_seeds), jax.devices()[:1])
    plan = driver.compile_iterate(driver.shapes()).memory_analysis()
    held = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return {"held": held, "temporary": plan.temp_size_in_bytes}


def bytes_of(tree: Any) -> int:
    """Return the bytes of arrays or of their shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def main(case_json: str) -> None:
    request_cpu_devices()
    side = Side(from_json(json.loads(case_json)))
    serve({"compile": side.compile, "train": side.train, "memory": side.memory})


if __name__ == "__main__":
    main(*sys.argv[1:])

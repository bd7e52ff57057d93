"""jaxrl's generations of a case, with the driver of ``jaxrl.run``: members are divided among the CPU devices, one per core."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import jax

import jaxrl
from benchmarks.protocol import serve
from jaxrl.metrics import to_floats
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.runtime.trainers.device_layout import open_fused


class Side:
    """Generations of a population of a case."""

    def __init__(self, case: dict[str, Any], noise: str) -> None:
        self.case = case
        settings = {name: case[name] for name in ("members", "episodes", "sigma", "learning_rate")}
        model = {"hidden_sizes": tuple(case["hidden_sizes"])}
        self.agent = jaxrl.make_es(case["env"], model=model, noise=noise, weight_decay=0.0, **settings)
        learner = self.agent.init(jax.random.key(0)).learner
        self.parameters = sum(x.size for x in jax.tree.leaves(learner.params))
        self.programs: dict[Any, Any] = {}

    def train(self, seed: int) -> dict[str, Any]:
        """Train from the beginning; return the seconds, the rows that were played and the mean return of each generation."""
        driver, _ = open_fused(self.agent, [seed])
        driver.programs = self.programs  # compiled once for all seeds
        state, seconds, rows, returns = driver.init(), [], [], []
        for _ in range(self.case["generations"]):
            start = time.perf_counter()
            state, metrics, _ = jax.block_until_ready(driver.iterate(state, 1))
            seconds.append(time.perf_counter() - start)
            rows.append(int(metrics["charts/valid_rows"].sum.sum()))
            returns.append(to_floats({"return": metrics["charts/episodic_return"]})["return"])
        return {"seconds": seconds, "rows": rows, "returns": returns}


def main() -> None:
    request_cpu_devices()
    side = Side(json.loads(sys.argv[1]), sys.argv[2])
    versions = {name: importlib.metadata.version(name) for name in ("jax", "gymnax", "brax")}
    serve({"train": side.train, "about": lambda: {"parameters": side.parameters, "versions": versions}})


if __name__ == "__main__":
    main()

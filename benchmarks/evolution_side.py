"""jaxrl's generations of a case, one after the other, as ``benchmarks.evolution`` times them."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import jax
import numpy as np

import jaxrl
from benchmarks.protocol import serve


class Side:
    """Generations of a population of a case."""

    def __init__(self, case: dict[str, Any], noise: str) -> None:
        self.case = case
        settings = {name: case[name] for name in ("members", "episodes", "sigma", "learning_rate")}
        model = {"hidden_sizes": tuple(case["hidden_sizes"])}
        self.agent = jaxrl.make_es(case["env"], model=model, noise=noise, weight_decay=0.0, **settings)
        self.step = jax.jit(self.agent.step)
        learner = self.agent.init(jax.random.key(0)).learner
        self.parameters = sum(x.size for x in jax.tree.leaves(learner.params))

    def train(self, seed: int) -> dict[str, Any]:
        """Train from the beginning; return the seconds and the mean return of each generation."""
        state = self.agent.init(jax.random.key(seed))
        seconds, returns = [], []
        for _ in range(self.case["generations"]):
            start = time.perf_counter()
            state, metrics = jax.block_until_ready(self.step(state))
            seconds.append(time.perf_counter() - start)
            returns.append(float(np.asarray(metrics["charts/episodic_return"])))
        return {"seconds": seconds, "returns": returns}


def main() -> None:
    side = Side(json.loads(sys.argv[1]), sys.argv[2])
    versions = {name: importlib.metadata.version(name) for name in ("jax", "gymnax")}
    serve({"train": side.train, "about": lambda: {"parameters": side.parameters, "versions": versions}})


if __name__ == "__main__":
    main()

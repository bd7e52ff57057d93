"""brax's training by evolution strategies, with the settings of a case."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import sys
from typing import Any

from brax import envs
from brax.training.agents.es import networks, train

from benchmarks.protocol import serve


class Done(Exception):
    """Ends a training after enough generations."""


class Side:
    """Generations of a population of a case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.env = envs.get_environment(case["env"].partition(":")[2])

    def train(self, seed: int) -> dict[str, Any]:
        """Train from the beginning; return the seconds, the rows within episodes and the mean return of each generation.

        The first generation includes compilation: each training compiles anew.
        """
        until, rows, returns = list[float](), list[int](), list[float]()

        def note(total: int, metrics: dict[str, Any]) -> None:
            if total == 0:
                return
            until.append(float(metrics["training/walltime"]))
            rows.append(total - sum(rows))
            returns.append(float(metrics["training/eval_scores_mean"]))
            if len(until) == self.case["generations"]:
                raise Done

        with contextlib.suppress(Done):
            train.train(
                self.env,
                num_timesteps=10**9,
                num_evals=10**9 + 1,  # after each generation, which is the only way to see it; not part of its time
                num_eval_envs=1,
                episode_length=self.case["limit"],
                population_size=self.case["members"] // 2,
                learning_rate=self.case["learning_rate"],
                perturbation_std=self.case["sigma"],
                fitness_shaping=train.FitnessShaping.CENTERED_RANK,
                normalize_observations=True,
                network_factory=functools.partial(networks.make_es_networks, hidden_layer_sizes=tuple(self.case["hidden_sizes"])),
                progress_fn=note,
                seed=seed,
            )
        seconds = [after - before for before, after in zip([0.0, *until], until, strict=False)]
        return {"seconds": seconds, "rows": rows, "returns": returns}


def main() -> None:
    side = Side(json.loads(sys.argv[1]))
    versions = {name: importlib.metadata.version(name) for name in ("brax", "jax")}
    serve({"train": side.train, "about": lambda: {"versions": versions}})


if __name__ == "__main__":
    main()

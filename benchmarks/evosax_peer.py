"""evosax's loop of OpenAI-ES on a gymnax environment, as its notebooks show it. It runs in evosax's virtual environment, so it
does not import jaxrl."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from evosax.algorithms import Open_ES
from evosax.problems.networks import MLP
from evosax.problems.rl.gymnax import GymnaxProblem

from benchmarks.protocol import serve


class Side:
    """Generations of a population of a case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case

        def greedy(x: jax.Array, key: jax.Array | None = None) -> jax.Array:
            return jnp.argmax(x, -1)

        sizes = (*case["hidden_sizes"], case["num_actions"])
        policy = MLP(layer_sizes=sizes, output_fn=greedy, activation=jax.nn.tanh)
        self.problem = GymnaxProblem(case["env"], policy, num_rollouts=case["episodes"])
        solution = self.problem.sample(jax.random.key(0))
        deviation = case["sigma"]
        self.strategy = Open_ES(
            case["members"], solution, optimizer=optax.adam(case["learning_rate"]), std_schedule=lambda step: deviation
        )
        self.params = self.strategy.default_params
        self.solution = solution
        self.parameters = sum(x.size for x in jax.tree.leaves(solution))

        @jax.jit
        def generation(key: jax.Array, state: Any, problem_state: Any) -> Any:
            ask_key, eval_key, tell_key = jax.random.split(key, 3)
            population, state = self.strategy.ask(ask_key, state, self.params)
            fitness, problem_state, _ = self.problem.eval(eval_key, population, problem_state)
            state, _ = self.strategy.tell(tell_key, population, -fitness, state, self.params)  # it minimises
            return state, problem_state, fitness.mean()

        self.generation = generation

    def train(self, seed: int) -> dict[str, Any]:
        """Train from the beginning; return the seconds and the mean return of each generation."""
        key = jax.random.key(seed)
        problem_state = self.problem.init(key)
        state = self.strategy.init(key, self.problem.sample(key), self.params)
        seconds, returns = [], []
        for number in range(self.case["generations"]):
            start = time.perf_counter()
            state, problem_state, mean = jax.block_until_ready(
                self.generation(jax.random.fold_in(key, number), state, problem_state)
            )
            seconds.append(time.perf_counter() - start)
            returns.append(float(mean))
        return {"seconds": seconds, "returns": returns}


def main() -> None:
    side = Side(json.loads(sys.argv[1]))
    versions = {name: importlib.metadata.version(name) for name in ("evosax", "jax", "gymnax")}
    serve({"train": side.train, "about": lambda: {"parameters": side.parameters, "versions": versions}})


if __name__ == "__main__":
    main()

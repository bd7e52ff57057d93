"""Rejax's program of a case. It runs in Rejax's virtual environment, so it does not import jaxrl."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rejax import get_algo
from rejax.evaluate import evaluate

from benchmarks.cases import Case
from benchmarks.worker import EPISODES, count_parameters, serve_program

RENAMED = {
    "rollout_length": "num_steps",
    "learning_starts": "fill_buffer",
    "epsilon_start": "eps_start",
    "epsilon_end": "eps_end",
}


def make_algorithm(case: Case) -> Any:
    """Return the algorithm of a case. Evaluation inside training is off."""
    total_steps = case.peer_total_steps or case.total_steps
    config = {RENAMED.get(name, name): value for name, value in case.settings.items()}
    if "tau" in config:
        config["polyak"] = 1 - config.pop("tau")
    if case.algorithm == "dqn":
        config["exploration_fraction"] = min(config.pop("exploration_steps") / total_steps, 1.0)
        config |= {"num_epochs": 1, "target_update_freq": 1}
    if case.algorithm == "sac":  # Rejax silently replaces sizes in agent_kwargs by 64, 64
        config |= {"num_epochs": 1, "target_update_freq": 1, "hidden_layer_sizes": tuple(case.hidden_sizes)}
    activation = "tanh" if case.algorithm == "ppo" else "relu"
    algorithm = get_algo(case.algorithm).create(
        env=case.env,
        agent_kwargs={"activation": activation},
        total_timesteps=total_steps,
        eval_freq=total_steps,
        skip_initial_evaluation=True,
        **config,
    )
    check_networks(algorithm, tuple(case.hidden_sizes))
    return algorithm.replace(eval_callback=lambda algorithm, state, key: ())


def check_networks(algorithm: Any, hidden_sizes: tuple[int, ...]) -> None:
    """Raise ValueError unless the networks have the case's sizes: Rejax ignores some keywords silently."""
    for name in ("actor", "critic", "agent"):
        network = getattr(algorithm, name, None)
        if network is not None and tuple(network.hidden_layer_sizes) != hidden_sizes:
            raise ValueError(f"Rejax built an {name} with sizes {network.hidden_layer_sizes}; the case needs {hidden_sizes}")


def greedy(actor: Any, obs: Any) -> Any:
    """Return the mode of a squashed Gaussian policy, scaled to the action bounds."""
    return actor.action_loc + jnp.tanh(actor._action_dist(obs).mode()) * actor.action_scale


class RejaxProgram:
    """``jit(vmap(train))`` over keys, as Rejax documents it."""

    name, version = "rejax", importlib.metadata.version("rejax")

    def __init__(self, case: Case) -> None:
        self._case, self._algorithm = case, make_algorithm(case)
        rows = case.steps_per_iteration
        self.total_steps = -(-self._algorithm.total_timesteps // rows) * rows
        self._train: Any = None

    def _keys(self, seeds: np.ndarray) -> Any:
        return jax.random.key(seeds[0]) if self._case.num_seeds == 1 else jax.vmap(jax.random.key)(seeds)

    def compile(self) -> tuple[float, int]:
        train = self._algorithm.train if self._case.num_seeds == 1 else jax.vmap(self._algorithm.train)
        keys = self._keys(np.arange(self._case.num_seeds, dtype=np.uint32))
        start = time.perf_counter()
        self._train = jax.jit(train).lower(keys).compile()
        seconds = time.perf_counter() - start
        state = jax.eval_shape(self._algorithm.init_state, jax.random.key(0))
        return seconds, count_parameters(self._params(state))

    def train(self, seeds: np.ndarray) -> tuple[Any, int]:
        states, _ = jax.block_until_ready(self._train(self._keys(seeds)))
        return states, self.total_steps * self._case.num_seeds

    def _params(self, states: Any) -> Any:
        return states.q_ts.params if self._case.algorithm == "dqn" else (states.actor_ts.params, states.critic_ts.params)

    def policies(self, states: Any) -> Any:
        params = self._params(states)
        return params if self._case.num_seeds > 1 else jax.tree.map(lambda leaf: leaf[None], params)

    def evaluate(self, policies: Any, keys: Any) -> Any:
        algorithm = self._algorithm

        def mean_return(params: Any, key: Any) -> Any:
            # Rejax's evaluation policy explores. This one is greedy, as for jaxrl.
            def act(obs: Any, key: Any) -> Any:
                if self._case.algorithm == "ppo":
                    return algorithm.actor.apply(params[0], obs[None], method="_action_dist").mode()[0]
                if self._case.algorithm == "sac":
                    return algorithm.actor.apply(params[0], obs[None], method=greedy)[0]
                return jnp.argmax(algorithm.agent.apply(params, obs[None])[0])

            limit = algorithm.env_params.max_steps_in_episode
            return evaluate(act, key, algorithm.env, algorithm.env_params, EPISODES, limit)[1].mean()

        return jax.jit(jax.vmap(mean_return))(policies, keys)


def main(case_json: str) -> None:
    case = Case(**json.loads(case_json))
    serve_program(RejaxProgram(case), case)


if __name__ == "__main__":
    main(*sys.argv[1:])

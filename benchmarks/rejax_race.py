"""Rejax's side of a race. It runs in Rejax's virtual environment, so it does not import jaxrl.

Rejax trains a fixed number of steps in one program. The time to a score is that of compiling it, and the share of its run up to
the evaluation that reaches the score.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rejax import get_algo
from rejax.evaluate import evaluate

from benchmarks.protocol import serve
from benchmarks.race_cases import EPISODES, EVALUATIONS
from benchmarks.rejax_peer import greedy


def mean_return(algorithm: Any, state: Any, key: Any) -> Any:
    """Return the mean of greedy episodes; Rejax's own evaluation explores."""
    limit = algorithm.env_params.max_steps_in_episode

    def act(obs: Any, key: Any) -> Any:
        if not hasattr(state, "actor_ts"):
            return jnp.argmax(algorithm.agent.apply(state.q_ts.params, obs[None])[0])
        if hasattr(algorithm.actor, "action_loc"):
            return algorithm.actor.apply(state.actor_ts.params, obs[None], method=greedy)[0]
        return algorithm.actor.apply(state.actor_ts.params, obs[None], method="_action_dist").mode()[0]

    return evaluate(act, key, algorithm.env, algorithm.env_params, EPISODES, limit)[1].mean()


def race(how: dict[str, Any], score: float, total_steps: int, num_seeds: int, first_seed: int) -> dict[str, Any]:
    begin = time.perf_counter()
    algorithm = get_algo(how["algorithm"]).create(
        env=how["env"],
        total_timesteps=total_steps,
        eval_freq=total_steps // EVALUATIONS,
        skip_initial_evaluation=True,
        **how["settings"],
    )
    algorithm = algorithm.replace(eval_callback=mean_return)
    keys = jax.vmap(jax.random.key)(np.arange(first_seed, first_seed + num_seeds, dtype=np.uint32))
    train = jax.jit(jax.vmap(algorithm.train)).lower(keys).compile()
    compiled = time.perf_counter()
    _, returns = jax.block_until_ready(train(keys))
    ran = time.perf_counter() - compiled
    means = np.asarray(returns).mean(0)
    passed = np.flatnonzero(means >= score)
    share = (passed[0] + 1) / len(means) if passed.size else 1.0
    reached = means[passed[0]] if passed.size else means[-1]
    return {"seconds": compiled - begin + share * ran, "steps": round(share * total_steps), "reached": float(reached)}


if __name__ == "__main__":
    serve({"race": race})

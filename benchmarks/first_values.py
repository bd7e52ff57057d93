"""Values that SAC's critics give to the first rows of greedy episodes, compared with the discounted returns of these episodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.critics.ensemble import action_values
from jaxrl.algorithms.common.critics.network_state import network_variables
from jaxrl.rollout.play import play_row, start_episodes
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.training import check_pure
from jaxrl.types import Agent, AgentState


def first_values(agent: Agent, states: AgentState, num_episodes: int) -> dict[str, list[float]]:
    """Return the means over episodes for each seed: ``estimated``, the mean of the critics' values of the first action, and
    ``returned``, the discounted return.

    Args:
      agent: one of ``make_sac`` without normalised observations, on a pure environment with Box actions whose episodes end.
      states: one for each seed.
    """
    algorithm, env, env_id = agent.algorithm, check_pure(agent, "first_values"), jnp.arange(num_episodes)
    setup = algorithm.learn.args[-1]  # type: ignore[union-attr]  # a partial, see jaxrl.replay.bind

    def of_seed(state: AgentState) -> dict[str, jax.Array]:
        policy, gamma = algorithm.policy(state.learner), state.learner.hyperparams.gamma
        reset_key, key = jax.random.split(jax.random.key(0))
        start = start_episodes(algorithm, env, reset_key, env_id, env.params)

        def row(at: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            progress, time, returned = at
            after = play_row(algorithm, env, policy, progress, env_id, jax.random.fold_in(key, time), env.params)
            reward = after.result.episodic_return - progress.result.episodic_return
            return after, time + 1, returned + gamma**time * reward

        unfinished = lambda at: ~at[0].result.finished.all()  # noqa: E731
        *_, returned = jax.lax.while_loop(unfinished, row, (start, jnp.zeros((), jnp.int32), jnp.zeros(num_episodes)))
        _, action, _ = algorithm.act(policy, start.actor.carry, start.actor.input, env_id, key, explore=False)
        critics, scaled = network_variables(state.learner).critic, from_environment(env.action_space, action)
        estimated = action_values(setup, critics, start.actor.input, scaled)
        return {"estimated": estimated.mean(), "returned": returned.mean()}

    return {name: found.tolist() for name, found in jax.jit(jax.vmap(of_seed))(states).items()}


def overestimation(values: dict[str, list[float]]) -> float:
    """Return how far the mean estimate is above the mean discounted return, as a share of the latter's size."""
    estimated, returned = (sum(values[name]) / len(values[name]) for name in ("estimated", "returned"))
    return (estimated - returned) / abs(returned)

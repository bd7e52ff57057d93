"""Evaluation on host environments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.rollout.autoreset import no_episode
from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.samplers.sampler import host_env
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.runtime.trainers.program_cache import SameAgent, acting_program
from jaxrl.training import EVALUATION_LIMIT, policy_of
from jaxrl.types import Agent, AgentState, Key, Policy


def evaluate_host(
    agent: Agent,
    policy: Policy | AgentState,
    key: Key,
    num_episodes: int,
    *,
    explore: bool = False,
    max_steps: int | None = None,
    on_row: Callable[[int], None] = lambda finished: None,
) -> Evaluation:
    """Implement ``jaxrl.evaluate`` for host environments, which are opened for it. The arguments have been checked.

    Args:
      on_row: progress callback, called after each row with the number of finished episodes.
    """
    env, algorithm, policy = host_env(agent), agent.algorithm, policy_of(agent, policy)
    act = acting_program(SameAgent(agent), explore)
    env_id = jnp.arange(num_episodes * max(1, env.num_agents), dtype=jnp.int32)
    reset_key, key = jax.random.split(key)
    seed = int(jax.random.randint(reset_key, (), 0, 2**31 - 1))
    with contextlib.closing(Stepper(env, num_episodes, seed, evaluation=True)) as envs:
        envs.reset()
        carry = algorithm.initial_carry(len(env_id))
        result = Evaluation(*no_episode(num_episodes), np.zeros(num_episodes, bool))  # type: ignore[arg-type]
        for t in range(max_steps or env.max_episode_steps or EVALUATION_LIMIT):
            carry, action, _ = act(policy, carry, envs.input, env_id, jax.random.fold_in(key, t))
            result = result.after(envs.step(np.asarray(action)), env.num_agents)
            on_row(int(result.finished.sum()))
            if result.finished.all():
                break
    return result

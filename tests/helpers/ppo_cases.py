"""PPO on cases that are small enough to compute by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces

from jaxrl.algorithms.common.ppo_objectives import Batch
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import actor_critic
from jaxrl.rollout.collect import collect
from jaxrl.types import Agent, AgentState, Env, Model, Rollout, TimeStep
from tests.helpers import probes
from tests.helpers.agents import small_ppo

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""


def sgd(hyperparams: Any) -> optax.GradientTransformation:
    return optax.sgd(hyperparams.learning_rate)


def one_rollout(agent: Agent) -> Callable[[AgentState], Rollout]:
    """Return a function that computes the rollout of the next step."""

    def roll(state: AgentState) -> Rollout:
        env_id, key = jnp.arange(agent.num_envs, dtype=jnp.int32), jax.random.fold_in(state.key, state.iteration)
        policy = agent.algorithm.policy(state.learner)
        return collect(agent.algorithm, agent.env, policy, state.actor, state.env_params, env_id, key, agent.rollout_length)[1]

    return jit(roll)


def weighted_params(params: Any, batch: Batch) -> Any:
    """Compute half the squared norm of all parameters, and log facts about the minibatch."""
    names = batch.inputs.obs[..., 0]
    half = 0.5 * sum((x**2).sum() for x in jax.tree.leaves(params))
    return half, {"names": names.sum(), "squares": (names**2).sum(), "size": jnp.float32(names.size)}


def whole_batch(extra: bool = False, **settings: Any) -> Agent:
    """Build an agent with one gradient step per iteration, by plain gradient descent."""
    losses = (weighted_params,) if extra else ()
    sizes = {"num_epochs": 1, "num_minibatches": 1, "learning_rate": 0.1, "gamma": 0.9, "optimizer": sgd}
    return small_ppo(probes.memory(), extra_losses=losses, **{**sizes, **settings})


@cache
def sample() -> tuple[AgentState, Rollout]:
    """Return a state and the rollout of its next step, valid for any agent on this environment."""
    agent = whole_batch()
    state = jit(agent.init)(KEY())
    rollout = one_rollout(agent)(state)
    assert not rollout.valid.all()
    return state, rollout


def small_model(env: Env) -> Model:
    return actor_critic(env.observation_space, env.action_space, hidden_sizes=(8,))


def clock() -> Env:
    """The observation is 50 + 5·time, the reward time². Truncated after ``params.every`` steps, or 3. No randomness."""

    def observe(time: Any) -> Any:
        return (50.0 + 5.0 * time.astype(jnp.float32))[None]

    def reset(key: Any, params: Any) -> Any:
        return jnp.int32(0), observe(jnp.int32(0))

    def step(key: Any, time: Any, action: Any, params: Any) -> Any:
        time = time + 1
        return time, TimeStep(observe(time), (time**2).astype(jnp.float32), jnp.array(False), time >= params.every)

    return Env(reset, step, spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2), probes.Cut(3), "clock")

"""Small inputs for tests of networks, and checks of their outputs."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import actor_critic
from jaxrl.rollout.inputs import example_input
from jaxrl.spaces.trees import zeros
from jaxrl.types import Agent, Model, StepInput

OBSERVATION = spaces.Box(-1, 1, (3,), np.float32)
DISCRETE, BOX = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
T, B = 6, 3
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs once or twice, so compiling it is the cost."""


def check_orthogonal(kernel: Any) -> None:
    w = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1])
    gram = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
    assert np.abs(gram - np.eye(len(gram))).max() < 2e-6


def sequence(action_space: spaces.Space, seed: int = 0) -> StepInput:
    """Return inputs [T, B]. Environment 0 starts at row 3, 1 at row 0, and 2 never."""
    rng = np.random.default_rng(seed)
    is_first = jnp.zeros((T, B), bool).at[3, 0].set(True).at[0, 1].set(True)
    action = rng.integers(4, size=(T, B)) if action_space is DISCRETE else rng.normal(size=(T, B, 2))
    obs, reward = rng.normal(size=(T, B, 3)), rng.normal(size=(T, B))
    return StepInput(jnp.float32(obs), jnp.asarray(action, zeros(action_space).dtype), jnp.float32(reward), is_first)


def rows(length: int, size: int = B, starts: float = 0.0, seed: int = 0) -> StepInput:
    """Return inputs [T, B], of which a fraction of ``starts`` begin an episode."""
    rng = np.random.default_rng(seed)
    obs, reward = rng.normal(size=(length, size, 3)), rng.normal(size=(length, size))
    action, is_first = rng.integers(4, size=(length, size)), rng.random((length, size)) < starts
    return StepInput(jnp.float32(obs), jnp.int32(action), jnp.float32(reward), jnp.asarray(is_first))


def carry_like(carry: Any, seed: int = 5) -> Any:
    """Return a random carry, in which some rows are not valid."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.random(x.shape) < 0.7 if x.dtype == bool else rng.normal(size=x.shape), x.dtype), carry
    )


BOARD = spaces.Box(0, 1, (10, 10, 4), np.float32)


def values_for(tree: Any, seed: int = 0) -> Any:
    """Return small random numbers for (shapes of) parameters, which are faster to draw than orthogonal ones."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape, scale=0.2), x.dtype), tree)


def shapes_of_a_step(agent: Agent) -> Any:
    return jax.eval_shape(lambda key: agent.step(agent.init(key)), jax.eval_shape(lambda: jax.random.key(0)))


def small_actor_critic(action_space: spaces.Space, **settings: Any) -> tuple[Model, Any]:
    """Return the model for ``OBSERVATION``, with a hidden layer of 8 units, and its parameters."""
    return _small_actor_critic(action_space is DISCRETE, tuple(settings.items()))


@cache
def _small_actor_critic(discrete: bool, settings: tuple[tuple[str, Any], ...]) -> tuple[Model, Any]:
    action_space = DISCRETE if discrete else BOX
    model = actor_critic(OBSERVATION, action_space, hidden_sizes=(8,), **dict(settings))
    return model, jit(model.init)(jax.random.key(0), example_input(OBSERVATION, action_space))

"""What rules share that act ε-greedily by Q-values: ε as it falls, the policy that has it, and the actions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl.actions import epsilon_greedy, falling_epsilon, spread_epsilon
from jaxrl.config import refuse_unused
from jaxrl.models import split_mask
from jaxrl.rule import Rule
from jaxrl.types import Array, Key, Policy, StepInput


def check_exploration(config: Any) -> None:
    """Refuse an ``epsilon_exponent`` that has no effect."""
    if config.num_envs == 1:
        refuse_unused(config, type(config)(), ["epsilon_exponent"], "with num_envs=1")


def epsilon(rule: Rule[Any], learner: Any) -> Array:
    """f32[]: ε of the next rollout, that of the first environment."""
    return falling_epsilon(rule.current(learner), learner.version.astype(jnp.float32) * rule.config.steps_per_iteration)


def policy(rule: Rule[Any], learner: Any) -> Policy:
    """The parameters and ε."""
    return Policy(learner.params, (), epsilon(rule, learner), learner.version)


def actions(rule: Rule[Any], policy: Policy, q_values: Array, inputs: StepInput, env_id: Array, keys: Key | None) -> Array:
    """i32[B]: ε-greedy with a key for each row, greedy without. Environments explore as ``epsilon_exponent`` says."""
    if keys is None:
        return jnp.argmax(q_values, -1).astype(jnp.int32)
    rates = spread_epsilon(policy.exploration, rule.config.epsilon_exponent, env_id, rule.config.num_envs)
    return epsilon_greedy(q_values, split_mask(inputs.obs)[1], rates, keys)

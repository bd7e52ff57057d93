"""Returns of a decision transformer that is asked for returns between the lowest and the highest one of its dataset."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from jaxrl.training import evaluate_pure
from jaxrl.types import Agent, AgentState, Array

FRACTIONS = 10
"""Number of returns that are asked for, evenly spaced up to the highest."""


def asked_returns(agent: Agent, states: AgentState, num_episodes: int) -> dict[str, list[Any]]:
    """Return ``asked``, the returns [10] that are asked for, and ``returned``, the mean returns [10, seeds] of greedy episodes.

    Args:
      agent: one of ``make_dt`` on a pure environment.
      states: one for each seed.
    """
    found = np.asarray(agent.data.returns_to_go)[np.asarray(agent.data.starts)]
    low, high = float(found.min()), float(found.max())

    def of_seed(state: AgentState, fraction: Array) -> Array:
        hyperparams = state.learner.hyperparams._replace(target_fraction=fraction)
        learner = state.learner._replace(hyperparams=hyperparams)
        policy = agent.algorithm.policy(learner)
        return evaluate_pure(agent, policy, jax.random.key(0), num_episodes).episodic_return.mean()

    over_seeds = jax.vmap(of_seed, in_axes=(0, None))
    fractions = jnp.arange(1, FRACTIONS + 1) / FRACTIONS
    returned = jax.jit(lambda states: jax.lax.map(lambda fraction: over_seeds(states, fraction), fractions))(states)
    return {"asked": (low + fractions * (high - low)).tolist(), "returned": returned.tolist()}


def rank_correlation(found: dict[str, list[Any]]) -> float:
    """Return Spearman's rank correlation of the returns, as means over seeds, with those that are asked for."""
    return float(scipy.stats.spearmanr(found["asked"], np.mean(found["returned"], axis=1)).statistic)

"""Values of a team as sums of its agents' values, for algorithms whose rows are those of lanes (``jaxrl.rollout.agents``)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.optimize.minibatches import check_minibatches
from jaxrl.rollout.agents import together
from jaxrl.settings.options import Option, option
from jaxrl.types import Array, Rollout


@option("vdn")
class VDN(Option):
    """Learn the team's value as the sum of its agents' values (Sunehag et al. 2018, eq. 3), from the mean of their rewards."""


class TeamRows(NamedTuple):
    """Rows of environments, [T, N], with the flags that ``jaxrl.returns`` takes."""

    reward: Array
    """f32: mean over all agents; those that are over get 0."""
    terminated: Array
    """The last agents ended, and none of them by a truncation."""
    truncated: Array
    """The last agents ended, and some of them by a truncation."""
    valid: Array
    """An agent acted."""


def team_rows(rollout: Rollout, num_agents: int) -> TeamRows:
    """Return the rows of environments, given those of their lanes."""
    reward, terminated, truncated, valid = (
        together(x, num_agents) for x in (rollout.reward, rollout.terminated, rollout.truncated, rollout.valid)
    )
    acted = valid.any(-1)
    over = acted & ~(valid & ~terminated & ~truncated).any(-1)
    cut = over & (valid & truncated).any(-1)
    return TeamRows(reward.mean(-1), over & ~cut, cut, acted)


def sum_of_reached(rollout: Rollout, reached: Array, num_agents: int) -> Array:
    """Return the team's values after rows, f32[T, N]: sums of the values of lanes, f32[T, B], without agents that terminated or
    were over before."""
    counts = together(rollout.valid & ~rollout.terminated, num_agents)
    return jnp.where(counts, together(reached, num_agents), 0.0).sum(-1)


def sum_of_chosen(chosen: Array, alive: Array) -> Array:
    """Return the team's values of the actions taken, f32[N]: sums of the agents' values, f32[N, A], where bool[N, A] is true."""
    return jnp.where(alive, chosen, 0.0).sum(-1)


def check_decomposition(setup: AlgorithmSetup[Any]) -> None:
    """Raise ValueError if a decomposition is set for one agent, or minibatches do not divide the rows of teams."""
    config = setup.config
    if config.decomposition is None:
        return
    if not setup.num_agents:
        raise ValueError(
            f"decomposition={config.decomposition} is for environments of several agents, and this one has one: leave it out"
        )
    check_minibatches(config.num_minibatches, 1, setup.steps_per_iteration, "num_envs * rollout_length")

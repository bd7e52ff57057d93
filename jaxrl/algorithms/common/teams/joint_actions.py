"""Critics that take the actions of all agents (Lowe et al. 2017): checks of settings, and the next actions of others."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup
from jaxrl.replay.options import Uniform
from jaxrl.replay.transitions import Transitions
from jaxrl.rollout.agents import together
from jaxrl.types import Array


def next_others(batch: Transitions, action: Array, num_agents: int) -> Array:
    """Return the actions f32[N, d] at the next observations as critics of other agents see them: zeros for agents that do not act
    there. If none acts, because the team was cut off, those that did not terminate count."""
    goes_on, acts = batch.valid & (batch.discount > 0), batch.valid & batch.next_valid
    any_acts = together(acts, num_agents).any(-1).repeat(num_agents)
    return jnp.where(jnp.where(any_acts, acts, goes_on)[:, None], action, 0.0)


def check_joint_actions(setup: ActorCriticSetup[Any], replay: Any) -> None:
    """Raise ValueError unless there are several agents, whose rows are drawn together.

    Args:
      replay: the builder's keyword.
    """
    config = setup.config
    if setup.data is not None:
        raise ValueError("joint_actions=True has no effect with data=…, whose rows are those of one agent: leave it out")
    if not setup.num_agents:
        raise ValueError("joint_actions=True is for environments of several agents, and this one has one agent: leave it out")
    if config.n_step > 1 or config.replay != Uniform() or callable(replay) or config.hindsight is not None:
        raise ValueError(
            "joint_actions=True needs n_step=1, and rows drawn with equal probability: leave n_step, replay and hindsight out"
        )

"""States of all seeds, changed for a checkpoint or after one: without a replay buffer, with another, for a longer run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import Agent, AgentState, HostEnv


def without_buffers(states: AgentState, buffers: Sequence[str]) -> AgentState:
    """States with ``()`` for these fields of the learner."""
    return states._replace(learner=states.learner._replace(**dict.fromkeys(buffers, ())))


def with_buffers(states: AgentState, fresh: AgentState, buffers: Sequence[str]) -> AgentState:
    """``states`` with these fields of the learner from ``fresh``."""
    return states._replace(learner=states.learner._replace(**{name: getattr(fresh.learner, name) for name in buffers}))


def mark_discontinuity(agent: Agent, state: AgentState, which: Any = None) -> AgentState:
    """The state of one seed whose environments begin anew: see ``Algorithm.mark_discontinuity``.

    Args:
      which: bool[]: False leaves it as it was.
    """
    if agent.algorithm.mark_discontinuity is None:
        return state
    sealed = state._replace(learner=agent.algorithm.mark_discontinuity(state.learner))
    if which is None:
        return sealed
    return jax.tree.map(lambda new, old: new if new is old else jnp.where(which, new, old), sealed, state)


def check_seal(agent: Agent, *, save_replay: bool) -> None:
    """Refuse a run whose replay could not tell, after a resume, that its next rows do not follow those stored."""
    begins_anew = isinstance(agent.env, HostEnv) or not save_replay
    if begins_anew and agent.algorithm.learn is not None and agent.algorithm.mark_discontinuity is None:
        why = f"{agent.env.name} runs on the host" if isinstance(agent.env, HostEnv) else "save_replay is False"
        raise TypeError(
            f"out=… makes a run that can be resumed, with new episodes after the rows of its replay, because {why}: give the "
            "Algorithm a function seal (Replay.mark_discontinuity on its buffer), or leave out= out"
        )


def with_total_steps(states: AgentState, total_steps: Any) -> AgentState:
    """``states`` of a run of ``total_steps`` rows, one number or [num_seeds]."""
    now = states.learner.hyperparams.total_steps
    length = jax.device_put(np.broadcast_to(np.asarray(total_steps, now.dtype), now.shape).copy(), now.sharding)
    return states._replace(learner=states.learner._replace(hyperparams=states.learner.hyperparams._replace(total_steps=length)))


def listed(states: AgentState) -> list[AgentState]:
    """Shapes of all seeds' states as a list with one per seed, as runs on the host saved them once."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), states)
    return [one] * jax.tree.leaves(states)[0].shape[0]


def stacked(states: Sequence[AgentState]) -> AgentState:
    """A list with one per seed as one, [num_seeds, ...]; uses it up, so that little memory is needed twice."""

    def stack(*leaves: jax.Array) -> jax.Array:
        whole = jax.block_until_ready(jnp.stack(leaves))
        for leaf in leaves:
            leaf.delete()
        return whole

    return jax.tree.map(stack, *states)

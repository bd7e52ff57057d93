"""Conversions of the states of all seeds before and after a checkpoint: replay buffers, discontinuities, total steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import Agent, AgentState


def without_buffers(states: AgentState, buffers: Sequence[str]) -> AgentState:
    """Replace these fields of the learner with ``()``."""
    return states._replace(learner=states.learner._replace(**dict.fromkeys(buffers, ())))


def with_buffers(states: AgentState, fresh: AgentState, buffers: Sequence[str]) -> AgentState:
    """Take these fields of the learner from ``fresh``."""
    return states._replace(learner=states.learner._replace(**{name: getattr(fresh.learner, name) for name in buffers}))


def mark_discontinuity(agent: Agent, state: AgentState, which: Any = None) -> AgentState:
    """Mark that the environments of one seed start new episodes, if ``which``, bool[]; see ``Algorithm.mark_discontinuity``."""
    if agent.algorithm.mark_discontinuity is None:
        return state
    marked = state._replace(learner=agent.algorithm.mark_discontinuity(state.learner))
    if which is None:
        return marked
    return jax.tree.map(lambda new, old: new if new is old else jnp.where(which, new, old), marked, state)


def check_can_mark_discontinuity(agent: Agent, *, save_replay: bool) -> None:
    """Raise TypeError for a resumable run whose algorithm cannot mark the discontinuity in its replay that a resume causes."""
    begins_anew = agent.collects_on_host or not save_replay
    if begins_anew and agent.algorithm.learn is not None and agent.algorithm.mark_discontinuity is None:
        why = f"{agent.env.name} runs on the host" if agent.collects_on_host else "save_replay is False"
        instead = "" if agent.collects_on_host else "leave save_replay=False out, "
        raise TypeError(
            f"out=… makes a run resumable, and a resume starts new episodes after the rows in replay, because {why}: {instead}"
            "give the Algorithm a function mark_discontinuity (Replay.mark_discontinuity on its buffer), or omit out="
        )


def with_total_steps(states: AgentState, total_steps: Any) -> AgentState:
    """Set ``total_steps``, the length of the run in rows: a scalar or [num_seeds]."""
    previous = states.learner.hyperparams.total_steps
    length = jax.device_put(np.broadcast_to(np.asarray(total_steps, previous.dtype), previous.shape).copy(), previous.sharding)
    return states._replace(learner=states.learner._replace(hyperparams=states.learner.hyperparams._replace(total_steps=length)))


def listed(states: AgentState) -> list[AgentState]:
    """Return the shapes of the states as a list with one entry per seed: the layout that earlier runs on the host saved."""
    seed_shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), states)
    return [seed_shapes] * jax.tree.leaves(states)[0].shape[0]


def stacked(states: Sequence[AgentState]) -> AgentState:
    """Stack a list with one state per seed along a new first axis, [num_seeds, ...].

    Deletes the arrays of ``states`` leaf by leaf, so that only one leaf at a time is in memory twice.
    """

    def stack(*leaves: jax.Array) -> jax.Array:
        whole = jax.block_until_ready(jnp.stack(leaves))
        for leaf in leaves:
            leaf.delete()
        return whole

    return jax.tree.map(stack, *states)

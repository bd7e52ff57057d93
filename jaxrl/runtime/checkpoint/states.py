"""States of all seeds, changed for a checkpoint or after one: without a replay buffer, with another, for a longer run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.types import Agent, AgentState, HostEnv, PyTree


def without_buffers(states: PyTree, buffers: Sequence[str]) -> PyTree:
    """States (of all seeds, or a list with one per seed) with ``()`` for these fields of the learner."""
    return map_states(lambda s: s._replace(learner=s.learner._replace(**dict.fromkeys(buffers, ()))), states)


def with_buffers(states: PyTree, fresh: PyTree, buffers: Sequence[str]) -> PyTree:
    """``states`` with these fields of the learner from ``fresh``."""
    return map_states(
        lambda s, f: s._replace(learner=s.learner._replace(**{name: getattr(f.learner, name) for name in buffers})), states, fresh
    )


def seal(agent: Agent, state: AgentState) -> AgentState:
    """The state of one seed whose environments begin anew: see ``Algorithm.seal``."""
    if agent.algorithm.seal is None:
        return state
    return state._replace(learner=agent.algorithm.seal(state.learner))


def check_seal(agent: Agent, *, save_replay: bool) -> None:
    """Refuse a run whose replay could not tell, after a resume, that its next rows do not follow those stored."""
    begins_anew = isinstance(agent.env, HostEnv) or not save_replay
    if begins_anew and agent.algorithm.learn is not None and agent.algorithm.seal is None:
        why = f"{agent.env.name} runs on the host" if isinstance(agent.env, HostEnv) else "save_replay is False"
        raise TypeError(
            f"out=… makes a run that can be resumed, with new episodes after the rows of its replay, because {why}: give the "
            "Algorithm a function seal (Replay.seal on its buffer), or leave out= out"
        )


def with_total_steps(states: PyTree, total_steps: Any) -> PyTree:
    """``states`` of a run of ``total_steps`` rows, one number or [num_seeds]."""

    def one(state: AgentState) -> AgentState:
        now = state.learner.hyperparams.total_steps
        length = jax.device_put(np.broadcast_to(np.asarray(total_steps, now.dtype), now.shape).copy(), now.sharding)
        return state._replace(learner=state.learner._replace(hyperparams=state.learner.hyperparams._replace(total_steps=length)))

    return map_states(one, states)


def map_states(function: Callable[..., AgentState], *states: PyTree) -> PyTree:
    """Over one AgentState with a seed axis, or lists of them."""
    if isinstance(states[0], list):
        return [function(*each) for each in zip(*states, strict=True)]
    return function(*states)

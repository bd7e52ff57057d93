"""Replay buffers as separate files, for learning without an environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from jaxrl.builder.spec import algorithm_name
from jaxrl.replay.stored import as_rollout, check_rows, ring_length, ring_rows, stored_rows
from jaxrl.replay.transitions import ReplayRow, example_row
from jaxrl.runtime.checkpoint.npz import Arrays, Column, open_arrays
from jaxrl.runtime.system.disk import replacing
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Agent, AgentState

L = TypeVar("L")


def save_replay(path: str | os.PathLike[str], state: Any) -> None:
    """Write the rows of a replay buffer to a NumPy ``.npz`` file, oldest first: arrays [N, B, ...] for N rows of B environments.

    Its arrays are ``obs``, or ``obs.NAME`` for each part of a Dict, ``action``, ``reward``, ``terminated`` and ``valid``. Rows
    are those of a ``Rollout``: a row that is not valid follows the end of an episode and holds its last observation. Rows of
    ``frame_replay`` hold only the newest frame, so no agent can load them.

    Args:
      state: AgentState or LearnerState of one seed of an algorithm with replay.
    """
    rows = stored_rows(_learner(state).replay)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(path)) as file:
        arrays: Any = {_name(where): np.ascontiguousarray(x) for where, x in jax.tree.leaves_with_path(rows)}
        np.savez(file, **arrays)


def load_replay(path: str | os.PathLike[str], agent: Agent, state: L) -> L:
    """Add the rows of a file written by ``save_replay`` to ``state``, as if just observed; the newest rows, if not all fit.

    The buffer may have been written by another agent, with other settings or another algorithm, if the spaces and the number of
    environments are the same. Rows are stored a rollout at a time, so an incomplete rollout of the oldest rows (fewer than
    ``rollout_length``) is omitted. In prioritised replay, all loaded rows start with equal priority. The file holds no recurrent
    state: sequences start from the initial state of an episode.

    No transition connects the rows stored before with those of the file, nor those of the file with the rows that follow: the
    newest row of each environment is marked as not valid, both before and after loading.

    The file need not be trusted: it is read a rollout at a time, so it takes no more memory than the buffer, and every row is
    checked.

    Args:
      state: AgentState of the agent, or its LearnerState, which ``agent.algorithm.init`` creates without stepping an environment.

    Raises:
      OSError: the file does not exist or is not a regular file.
      TypeError: the algorithm has no replay, or cannot mark a discontinuity in it, or stores more with its rows.
      ValueError: the file was not written by ``save_replay``, is damaged, is for other spaces or another number of environments,
        or has a row that the environment cannot have produced.
    """
    learner, length, algorithm = _learner(state), agent.rollout_length, agent.algorithm
    if algorithm.observe is None or algorithm.mark_discontinuity is None:
        raise TypeError(
            "the agent's Algorithm needs observe and mark_discontinuity to load rows from a file: give it a function "
            "mark_discontinuity that calls Replay.mark_discontinuity on its buffer"
        )
    held = jax.eval_shape(lambda: ring_rows(learner.replay))
    if held is not None and (not isinstance(held, ReplayRow) or held.extras != ()):
        raise TypeError(
            f"{algorithm_name(agent.spec)} stores further values with its rows, such as the policies of searches, which a file "
            "of rows does not have: resume from a checkpoint, which holds the buffer"
        )
    room = ring_length(learner.replay)
    with open_arrays(Path(path)) as file:
        columns, structure = _open(Path(path), file, agent)
        count, num_envs = columns[-1].shape
        observe, mark_discontinuity = (jax.jit(f, donate_argnums=0) for f in (algorithm.observe, algorithm.mark_discontinuity))
        # The file's rows do not continue those stored before, and the next rows do not continue the file's.
        learner, carry = mark_discontinuity(jax.tree.map(lambda x: x.copy(), learner)), algorithm.initial_carry(num_envs)
        start, reached = count - min(count, room or count) // length * length, np.zeros(num_envs, bool)
        for column in columns:
            column.skip(start)
        for first in range(start, count, length):
            rows = jax.tree.unflatten(structure, [column.read(length) for column in columns])
            try:
                reached = check_rows(rows, agent.env, reached, first)
            except ValueError as error:
                raise ValueError(f"{path}: {error}, which {agent.env.name} cannot have produced: remove such rows") from None
            learner = observe(learner, as_rollout(rows, carry))
    learner = mark_discontinuity(learner)
    return state._replace(learner=learner) if isinstance(state, AgentState) else learner


def _open(path: Path, file: Arrays, agent: Agent) -> tuple[list[Column], Any]:
    """Open the arrays of rows and check that they fit this agent. Return the columns, and the structure of a row of them."""
    leaves, structure = jax.tree.flatten_with_path(example_row(agent.env.observation_space, agent.env.action_space))
    if missing := {_name(where) for where, _ in leaves} - {*file.names}:
        held = ", ".join(name if name.isprintable() else ascii(name) for name in file.names[:20]) or "no array"
        raise ValueError(f"{path} has no {', '.join(sorted(missing))}, which {agent.env.name} needs. It holds {held[:300]}")
    columns = [file.column(_name(where)) for where, _ in leaves]
    leading = columns[-1].shape
    for (where, x), column in zip(leaves, columns, strict=True):
        wanted = jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype)
        if (column.shape, column.dtype) != (wanted.shape, wanted.dtype) or len(leading) != 2:
            raise ValueError(
                f"{path}: {_name(where)} is {show_shapes(column)}, but for {agent.env.name} it must be {show_shapes(wanted)}: "
                "use an environment with the same spaces as the one that the rows come from. Rows of frame_replay hold only the "
                "newest frame and cannot be loaded"
            )
    count, num_lanes = leading
    if num_lanes != agent.num_lanes:
        each = max(1, agent.env.num_agents)
        raise ValueError(
            f"{path} holds rows of {num_lanes / each:g} environments: build the agent with num_envs={num_lanes / each:g}, not "
            f"{agent.num_envs}"
        )
    if count < agent.rollout_length:
        raise ValueError(f"{path} holds {count} rows per environment: build the agent with a rollout_length of at most that")
    return columns, structure


def _learner(state: Any) -> Any:
    learner = state.learner if isinstance(state, AgentState) else state
    if not hasattr(learner, "replay"):
        raise TypeError(
            f"state must come from an algorithm with replay, such as make_dqn or make_sac, but it is {type(learner).__name__}"
        )
    return learner


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")

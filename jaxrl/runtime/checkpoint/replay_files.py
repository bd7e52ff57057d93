"""Buffers of replay as files of their own, to learn from without an environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from jaxrl.replay.stored import as_rollout, check_rows, ring_length, stored_rows
from jaxrl.replay.transitions import ReplayRow, example_row
from jaxrl.runtime.checkpoint.npz import Arrays, Column, open_arrays
from jaxrl.runtime.system.disk import replacing
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Agent, AgentState

L = TypeVar("L")


def save_replay(path: str | os.PathLike[str], state: Any) -> None:
    """Write the rows of a buffer to a ``.npz`` file of NumPy, oldest first: arrays [N, B, ...] for N rows of B environments.

    Its arrays are ``obs``, or ``obs.NAME`` for each part of a Dict, ``action``, ``reward``, ``terminated`` and ``valid``. Rows
    are those of a ``Rollout``: one that is not valid follows an end and holds the last observation.

    Args:
      state: AgentState or LearnerState of one seed of a rule with replay.
    """
    rows = stored_rows(_learner(state).replay)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(path)) as file:
        arrays: Any = {_name(where): np.ascontiguousarray(x) for where, x in jax.tree.leaves_with_path(rows)}
        np.savez(file, **arrays)


def load_replay(path: str | os.PathLike[str], agent: Agent, state: L) -> L:
    """``state`` with the rows of a file that ``save_replay`` wrote, as if it had just observed them; the newest, if not all fit.

    A buffer may be loaded by another agent than wrote it, with other settings or of another rule, for the same spaces and number
    of environments. As rows are stored a rollout at a time, the oldest ones, fewer than ``rollout_length``, are left out. In
    prioritised replay all rows count alike at first. A file holds no recurrent state: sequences begin with that of an episode.

    No transition leads from the rows stored before into those of the file, nor from these into the ones that come next: the
    newest row of each environment is marked as not valid, on both sides of what is loaded.

    The file may be anyone's: it is read a rollout at a time, so it takes no more memory than the buffer has, and every row is
    checked.

    Args:
      state: AgentState of the agent, or its LearnerState, as ``agent.algorithm.init`` gives one without stepping an environment.

    Raises:
      OSError: there is no such file, or it is not a regular one.
      TypeError: a rule without replay, or of which the replay cannot be sealed.
      ValueError: the file is not one of ``save_replay``, is damaged, is for other spaces or another number of environments, or
        has a row that the environment cannot have given.
    """
    learner, length, algorithm = _learner(state), agent.rollout_length, agent.algorithm
    if algorithm.observe is None or algorithm.mark_discontinuity is None:
        raise TypeError(
            "the agent's Algorithm needs observe and seal to take rows from a file: give it seal, Replay.mark_discontinuity on its buffer"
        )
    room = ring_length(learner.replay)
    with open_arrays(Path(path)) as file:
        stored = _open(Path(path), file, agent)
        count, num_envs = stored.size
        observe, mark_discontinuity = (jax.jit(f, donate_argnums=0) for f in (algorithm.observe, algorithm.mark_discontinuity))
        # The file's rows do not follow those stored before, and the next ones to come do not follow them.
        learner, carry = mark_discontinuity(jax.tree.map(lambda x: x.copy(), learner)), algorithm.initial_carry(num_envs)
        start = count - min(count, room or count) // length * length
        stored.skip(start)
        for _ in range(start, count, length):
            learner = observe(learner, as_rollout(stored.read(length), carry))
    learner = mark_discontinuity(learner)
    return state._replace(learner=learner) if isinstance(state, AgentState) else learner


class _Stored:
    """The rows of an open file, from the oldest on."""

    def __init__(self, path: Path, columns: list[Column], structure: Any, agent: Agent) -> None:
        self._path, self._columns, self._structure, self._agent = path, columns, structure, agent
        self.size: tuple[int, int] = columns[-1].shape  # type: ignore[assignment]
        self._first, self._reached = 0, np.zeros(self.size[1], bool)

    def skip(self, count: int) -> None:
        for column in self._columns:
            column.skip(count)
        self._first += count

    def read(self, count: int) -> ReplayRow:
        """The next rows, [count, B, ...].

        Raises:
          ValueError: the environment cannot have given one of them.
        """
        rows = jax.tree.unflatten(self._structure, [column.read(count) for column in self._columns])
        try:
            self._reached = check_rows(rows, self._agent.env, self._reached, self._first)
        except ValueError as error:
            name = self._agent.env.name
            raise ValueError(f"{self._path}: {error}, which {name} cannot have given: leave such rows out") from None
        self._first += count
        return rows


def _open(path: Path, file: Arrays, agent: Agent) -> _Stored:
    """The arrays of rows for this agent, none of which was read yet.

    Raises:
      ValueError: they are missing, or of other shapes or types.
    """
    leaves, structure = jax.tree.flatten_with_path(example_row(agent.env.observation_space, agent.env.action_space))
    if missing := {_name(where) for where, _ in leaves} - {*file.names}:
        held = ", ".join(name if name.isprintable() else ascii(name) for name in file.names[:20]) or "no array"
        raise ValueError(f"{path} has no {', '.join(sorted(missing))}, which {agent.env.name} needs: it holds {held[:300]}")
    columns = [file.column(_name(where)) for where, _ in leaves]
    leading = columns[-1].shape
    for (where, x), given in zip(leaves, columns, strict=True):
        wanted = jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype)
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype) or len(leading) != 2:
            raise ValueError(
                f"{path}: {_name(where)} is {show_shapes(given)}, and for {agent.env.name} it must be {show_shapes(wanted)}: use "
                "an environment with the spaces of the one that the rows are from"
            )
    count, num_envs = leading
    if num_envs != agent.num_envs:
        raise ValueError(
            f"{path} holds rows of {num_envs} environments: build the agent with num_envs={num_envs}, not {agent.num_envs}"
        )
    if count < agent.rollout_length:
        raise ValueError(f"{path} holds {count} rows of each environment: build the agent with a rollout_length of at most that")
    return _Stored(path, columns, structure, agent)


def _learner(state: Any) -> Any:
    learner = state.learner if isinstance(state, AgentState) else state
    if not hasattr(learner, "replay"):
        raise TypeError(f"state must be that of a rule with replay, not {type(learner).__name__}: make_dqn and make_sac have one")
    return learner


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")

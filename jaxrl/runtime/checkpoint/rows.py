"""Buffers of replay as files of their own, to learn from without an environment."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from jaxrl.replay.stored import as_rollouts, stored_rows
from jaxrl.replay.transitions import example_row
from jaxrl.runtime.system.disk import replacing
from jaxrl.spaces import show_shapes
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
        np.savez(file, **{_name(where): x for where, x in jax.tree.leaves_with_path(rows)})


def load_replay(path: str | os.PathLike[str], agent: Agent, state: L) -> L:
    """``state`` with the rows of a file that ``save_replay`` wrote, as if it had just observed them; the newest, if not all fit.

    A buffer may be loaded by another agent than wrote it, with other settings or of another rule, for the same spaces and number
    of environments. As rows are stored a rollout at a time, the oldest ones, fewer than ``rollout_length``, are left out. In
    prioritised replay all rows count alike at first. A file holds no recurrent state: sequences begin with that of an episode.

    Args:
      state: AgentState of the agent, or its LearnerState, as ``agent.algorithm.init`` gives one without stepping an environment.

    Raises:
      ValueError: the file is no such one, or is for other spaces or another number of environments.
    """
    learner, rows, length = _learner(state), _read(Path(path), agent), agent.rollout_length
    count, num_envs = rows.valid.shape
    if num_envs != agent.num_envs:
        raise ValueError(
            f"{path} holds rows of {num_envs} environments: build the agent with num_envs={num_envs}, not {agent.num_envs}"
        )
    if count < length:
        raise ValueError(f"{path} holds {count} rows of each environment: build the agent with a rollout_length of at most that")
    observe = jax.jit(agent.algorithm.observe, donate_argnums=0)  # type: ignore[arg-type]
    learner = jax.tree.map(lambda x: x.copy(), learner)
    for rollout in as_rollouts(rows, length, agent.algorithm.initial_carry(num_envs)):
        learner = observe(learner, rollout)
    return state._replace(learner=learner) if isinstance(state, AgentState) else learner


def _read(path: Path, agent: Agent) -> Any:
    example = example_row(agent.env.observation_space, agent.env.action_space)
    leaves, structure = jax.tree.flatten_with_path(example)
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise ValueError(f"{path} is no file of save_replay: {error}") from error
    if missing := {_name(where) for where, _ in leaves} - {*arrays}:
        raise ValueError(
            f"{path} has no {', '.join(sorted(missing))}, which {agent.env.name} needs: it holds {', '.join(sorted(arrays))}"
        )
    rows = [arrays[_name(where)] for where, _ in leaves]
    leading = rows[-1].shape
    for (where, x), given in zip(leaves, rows, strict=True):
        wanted = jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype)
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype) or len(leading) != 2:
            raise ValueError(
                f"{path}: {_name(where)} is {show_shapes(given)}, and for {agent.env.name} it must be {show_shapes(wanted)}: use "
                "an environment with the spaces of the one that the rows are from"
            )
    return jax.tree.unflatten(structure, rows)


def _learner(state: Any) -> Any:
    learner = state.learner if isinstance(state, AgentState) else state
    if not hasattr(learner, "replay"):
        raise TypeError(f"state must be that of a rule with replay, not {type(learner).__name__}: make_dqn and make_sac have one")
    return learner


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")

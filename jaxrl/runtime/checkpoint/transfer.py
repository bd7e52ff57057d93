"""Fine-tuning: start a run with those parameters of another run that fit."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.runtime.checkpoint.leaves import LeafSpec
from jaxrl.runtime.checkpoint.manifest import latest_step
from jaxrl.runtime.checkpoint.restore import read_arrays
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.run_folder import BEST, CHECKPOINTS, CONFIG, read_config
from jaxrl.runtime.system.disk import absolute
from jaxrl.settings.aliases import nearest, shortened
from jaxrl.types import PyTree

POLICY = (".params", ".statistics")
"""Prefixes of paths in saved policies, as opposed to complete states."""

WHICH = ("best", "last")
"""Choices of saved parameters: the policies of the best evaluation, or the last checkpoint."""

SHOWN = 4
"""Number of differences named in the report."""


class Source(NamedTuple):
    """Learnt parameters to start from."""

    name: str
    """Used in reports."""
    arrays: dict[str, np.ndarray]
    """Arrays [num_seeds, ...] by their paths in an AgentState."""


def read_source(source: str | os.PathLike[str] | PyTree, which: str = "best") -> Source:
    """Read the learnt parameters from a folder or from states.

    Args:
      source: a run folder, a folder of checkpoints, or states as returned by ``run``.
      which: for a run folder, its "best" policies or its "last" checkpoint. The best policies hold no target parameters; these
        are initialised from them.

    Raises:
      FileNotFoundError, CheckpointError: there is no checkpoint, or none is intact.
    """
    if isinstance(source, str | os.PathLike):
        folder, name = absolute(source), repr(os.fspath(source))
        run = read_config(source).get("id") if (folder / CONFIG).exists() else None
        kind = "checkpoint"
        if (folder / CONFIG).exists() or (folder / CHECKPOINTS).is_dir():
            folder, kind = saved_folder(source, which, "init_which"), f"{which} {'policies' if which == 'best' else 'checkpoint'}"
        arrays, info = read_arrays(folder, run=run)
        name = f"{name} ({kind}, iteration {info.step})"
    else:
        name = "the given states"
        whole = source if current().is_alone else current().fetch(source)
        arrays = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(whole)}
    return Source(name, by_path({f".learner{path}" if path.startswith(POLICY) else path: leaf for path, leaf in arrays.items()}))


def describe_source(source: Any, which: str) -> dict[str, Any] | None:
    """Describe ``init_from`` for ``config.json``, so that a run without a checkpoint can start again in the same way."""
    if source is None:
        return None
    return {"folder": os.fspath(absolute(source)) if isinstance(source, str | os.PathLike) else None, "which": which}


def recorded_source(origin: Any, out: str) -> tuple[Any, str]:
    """Return ``init_from`` and ``init_which`` of the run in ``out``, which is resumed without a checkpoint.

    Args:
      origin: their description by ``describe_source``.

    Raises:
      ValueError: the run was started from states, or ``origin`` was not written by a run.
      FileNotFoundError: the run was started from a folder that no longer exists.
    """
    if origin is None:
        return None, "best"
    began = f"out={out!r} has no checkpoint yet, and was started from"
    match origin:
        case {"folder": None}:
            raise ValueError(f"{began} states that only its script has: call jaxrl.run as before, with init_from=…")
        case {"folder": str(folder), "which": str(which)} if which in WHICH:
            if not os.path.isdir(folder):
                raise FileNotFoundError(
                    f"{began} init_from={folder!r}, which no longer exists: restore it, or call jaxrl.run with another"
                )
            return folder, which
    raise ValueError(f"{CONFIG} in {out!r} is invalid: its 'init_from' is {origin!r}. Restore it from a copy")


def warm_start(states: PyTree, source: Source, transferable: Sequence[str]) -> tuple[PyTree, str]:
    """Copy the arrays of ``source`` into the states of all seeds where name, shape and dtype agree; return (states, report).

    Args:
      states: freshly initialised, every leaf [num_seeds, ...]. The seed at index i takes the arrays at index i of the source,
        modulo the number of seeds there.
      transferable: fields of the learner to copy; see ``Algorithm.transferable_fields``.

    Raises:
      ValueError: no array fits, or the agent is a population.
    """
    name, found = source
    if not transferable:
        raise ValueError(
            f"init_from={name}: a population cannot start from another run, since each of its members begins with parameters "
            "that it drew. Leave out init_from, or train one of its agents with it, without a population"
        )
    leaves, structure = jax.tree_util.tree_flatten_with_path(states)
    taken, left, new, members = 0, [], [], 0
    for path, leaf in leaves:
        where = jax.tree_util.keystr(path)
        field = re.match(r"\.learner\.(\w+)", where)
        if field and field[1] in transferable:
            there = found.get(where)
            if not any(path.startswith(field[0]) for path in found):
                there = found.get(f".learner.params{where.removeprefix(field[0])}")
            wanted = LeafSpec(where, leaf.shape[1:], str(leaf.dtype))
            source_spec = None if there is None else LeafSpec(where, there.shape[1:], str(there.dtype))
            if there is not None and source_spec == wanted:
                taken, members = taken + 1, len(there)
                leaf = jax.device_put(there[np.arange(len(leaf)) % members], leaf.sharding)
            else:
                left.append(f"{where} {wanted} ({f'there {source_spec}' if source_spec else 'not there'})")
        new.append(leaf)
    if not taken:
        raise ValueError(f"init_from={name}: nothing in it fits this agent. Without a match: {'; '.join(left[:SHOWN])}")
    report = f"init_from={name}: took {taken} of {taken + len(left)} arrays"
    if (num_seeds := len(leaves[0][1])) != members:
        report += f" ({members} member{'s' * (members > 1)} for {num_seeds} seed{'s' * (num_seeds > 1)}: seed i, from 0, takes "
        report += f"member i % {members})"
    if left:
        remainder = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        report += f"; newly initialised: {'; '.join(left[:SHOWN])}{remainder}"
    return structure.unflatten(new), report


def by_path(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return arrays by path without the seed, [num_seeds, ...]. Earlier runs on the host saved a list with one state per seed."""
    grouped: dict[str, list[Any]] = {}
    listed = False
    for path, array in arrays.items():
        where = re.sub(r"^\[\d+\]", "", path)
        listed |= where != path
        if where.startswith(".learner.") and not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            grouped.setdefault(where, []).append(array)
    return {where: np.stack(each) if listed else np.asarray(each[0]) for where, each in grouped.items()}


def check_which(name: str, which: str) -> None:
    """Check that ``which`` is one of ``WHICH``; ``name`` is the name of the argument, for the message."""
    if not isinstance(which, str) or which not in WHICH:
        kind = ValueError if isinstance(which, str) else TypeError
        raise kind(f"{name}={shortened(which)} is unknown.{nearest(which, WHICH)} Choose one of {WHICH}")


def saved_folder(run: str | os.PathLike[str], which: str, name: str = "which") -> Path:
    """Return the folder in which a run saved its best policies or its checkpoints; raise FileNotFoundError if it has none."""
    folder = absolute(run)
    saved = folder / (BEST if which == "best" else CHECKPOINTS)
    if latest_step(saved) is None:
        there = which == "best" and latest_step(folder / CHECKPOINTS) is not None
        hint = f"; {name}='last' uses its last checkpoint" if there else ""
        reason = "the run saved nothing" + ", or was not evaluated" * (which == "best")
        raise FileNotFoundError(f"{os.fspath(run)!r} has no {saved.name}/ yet: {reason}{hint}")
    return saved

"""Fine-tuning: begin a run with the parameters of another one, as far as they fit."""

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
"""How paths begin where policies are saved and not whole states."""

WHICH = ("best", "last")
"""Of what a run saved: the policies of its best evaluation, or its last checkpoint."""

SHOWN = 4
"""Differences that the report names."""


class Source(NamedTuple):
    """What somebody learnt."""

    name: str
    """For reports."""
    arrays: dict[str, np.ndarray]
    """By their paths in an AgentState; every one [num_seeds, ...]."""


def read_source(source: str | os.PathLike[str] | PyTree, which: str = "best") -> Source:
    """What is learnt in a folder, or by given states.

    Args:
      source: the folder of a run or of checkpoints, or states as ``run`` returns them.
      which: of a run, the "best" policies or the "last" checkpoint. The best have no target parameters: theirs follow.

    Raises:
      FileNotFoundError, CheckpointError: there is no checkpoint, or none is whole.
    """
    if isinstance(source, str | os.PathLike):
        folder, name = absolute(source), repr(os.fspath(source))
        run = read_config(source).get("id") if (folder / CONFIG).exists() else None
        what = "checkpoint"
        if (folder / CONFIG).exists() or (folder / CHECKPOINTS).is_dir():
            folder, what = saved_folder(source, which, "init_which"), f"{which} {'policies' if which == 'best' else 'checkpoint'}"
        given, info = read_arrays(folder, run=run)
        name = f"{name} ({what}, iteration {info.step})"
    else:
        name = "the given states"
        whole = source if current().is_alone else current().fetch(source)
        given = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(whole)}
    return Source(name, by_path({f".learner{path}" if path.startswith(POLICY) else path: leaf for path, leaf in given.items()}))


def describe_source(source: Any, which: str) -> dict[str, Any] | None:
    """What ``config.json`` says of ``init_from``, so that a run which saved no checkpoint yet can begin the same again."""
    if source is None:
        return None
    return {"folder": os.fspath(absolute(source)) if isinstance(source, str | os.PathLike) else None, "which": which}


def recorded_source(origin: Any, out: str) -> tuple[Any, str]:
    """``init_from`` and ``init_which`` of the run in ``out``, which goes on without a checkpoint.

    Args:
      origin: what ``describe_source`` said of them.

    Raises:
      ValueError: it began with states, or ``origin`` is not what a run writes.
      FileNotFoundError: it began with a folder that is gone.
    """
    if origin is None:
        return None, "best"
    began = f"out={out!r} has no checkpoint yet, and began with"
    match origin:
        case {"folder": None}:
            raise ValueError(f"{began} states that only its script knows: call jaxrl.run as before, with init_from=…")
        case {"folder": str(folder), "which": str(which)} if which in WHICH:
            if not os.path.isdir(folder):
                raise FileNotFoundError(
                    f"{began} init_from={folder!r}, which is gone: put it back, or call jaxrl.run with another"
                )
            return folder, which
    raise ValueError(f"{CONFIG} in {out!r} is not what a run writes: its 'init_from' is {origin!r}. Put it back from a copy")


def warm_start(states: PyTree, source: Source, transferable: Sequence[str]) -> tuple[PyTree, str]:
    """States of all seeds with the learnt arrays of ``source`` where name, shape and dtype agree, and a report.

    Args:
      states: new ones, every leaf [num_seeds, ...]. Seed i, by its place, takes the arrays of the source's seed i; where that has
        fewer, they serve in turn.
      transferable: which fields of the learner; see ``Algorithm.transferable_fields``.

    Raises:
      ValueError: nothing fits.
    """
    name, found = source
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
            given = None if there is None else LeafSpec(where, there.shape[1:], str(there.dtype))
            if there is not None and given == wanted:
                taken, members = taken + 1, len(there)
                leaf = jax.device_put(there[np.arange(len(leaf)) % members], leaf.sharding)
            else:
                left.append(f"{where} {wanted} ({f'there {given}' if given else 'not there'})")
        new.append(leaf)
    if not taken:
        raise ValueError(f"init_from={name}: nothing in it fits this agent. Here new: {'; '.join(left[:SHOWN])}")
    report = f"init_from={name}: took {taken} of {taken + len(left)} arrays"
    num_seeds = len(leaves[0][1])
    if num_seeds != members:
        report += f" ({members} member{'s' * (members > 1)} for {num_seeds} seed{'s' * (num_seeds > 1)}: seed i, from 0, takes "
        report += f"member i % {members})"
    if left:
        more = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        report += f"; new ones for {'; '.join(left[:SHOWN])}{more}"
    return structure.unflatten(new), report


def by_path(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Path without the seed -> [num_seeds, ...]: states of host environments once came as a list, one per seed."""
    grouped: dict[str, list[Any]] = {}
    listed = False
    for path, array in arrays.items():
        seed, where = _split_seed(path)
        listed |= seed is not None
        if where.startswith(".learner.") and not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            grouped.setdefault(where, []).append(array)
    return {where: np.stack(each) if listed else np.asarray(each[0]) for where, each in grouped.items()}


def _split_seed(path: str) -> tuple[int | None, str]:
    match = re.match(r"\[(\d+)\]", path)
    return (int(match[1]), path[match.end() :]) if match else (None, path)


def check_which(name: str, which: str) -> None:
    """``name`` is the argument that chooses."""
    if not isinstance(which, str) or which not in WHICH:
        kind = ValueError if isinstance(which, str) else TypeError
        raise kind(f"{name}={shortened(which)} is unknown.{nearest(which, WHICH)} Choose one of {WHICH}")


def saved_folder(run: str | os.PathLike[str], which: str, name: str = "which") -> Path:
    """Where a run saved its best policies, or its last states.

    Raises:
      FileNotFoundError: it saved none; says so if the other choice is there.
    """
    folder = absolute(run)
    saved = folder / (BEST if which == "best" else CHECKPOINTS)
    if latest_step(saved) is None:
        there = which == "best" and latest_step(folder / CHECKPOINTS) is not None
        hint = f"; {name}='last' takes its last checkpoint" if there else ""
        raise FileNotFoundError(f"{os.fspath(run)!r} has no {saved.name}/ yet: the run saved nothing, or was not evaluated{hint}")
    return saved

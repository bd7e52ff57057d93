"""Fine-tuning: begin a run with the parameters of another one, as far as they fit."""

from __future__ import annotations

import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.runtime.checkpoint import read_arrays
from jaxrl.runtime.folder import CHECKPOINTS, absolute
from jaxrl.types import PyTree

TAKEN = ("params", "target_params", "statistics")
"""Of a LearnerState: what was learnt, without the state of the optimiser, the replay buffer and the keys."""

SHOWN = 4
"""Differences that the report names."""


def take_over(states: PyTree, source: str | os.PathLike[str] | PyTree) -> tuple[PyTree, str]:
    """States of all seeds with the learnt arrays of ``source`` where name, shape and dtype agree, and a report.

    Args:
      states: new ones, every leaf [num_seeds, ...], or a list with one per seed.
      source: the folder of a run or of checkpoints, or states as ``run`` returns them. Seed i takes those of its seed i; where it
        has fewer, they serve in turn.

    Raises:
      FileNotFoundError, CheckpointError: there is no checkpoint, or none is whole.
      ValueError: nothing fits.
    """
    name, arrays = _read(source)
    found = by_path(arrays)
    leaves, structure = jax.tree_util.tree_flatten_with_path(states)
    taken, left, new = 0, [], []
    for path, leaf in leaves:
        seed, where = _split_seed(jax.tree_util.keystr(path))
        if not where.startswith(tuple(f".learner.{part}" for part in TAKEN)):
            new.append(leaf)
            continue
        value = _fitting(found.get(where), leaf, seed)
        if value is None:
            there = found.get(where)
            left.append(f"{where} {_shape(leaf, seed)} ({'not there' if there is None else f'there {_shape(there, None)}'})")
        taken += value is not None
        new.append(leaf if value is None else jax.device_put(value, leaf.sharding))
    if not taken:
        raise ValueError(f"init_from={name}: nothing in it fits this agent. Here new: {'; '.join(left[:SHOWN])}")
    report = f"init_from={name}: took {taken} of {taken + len(left)} arrays"
    if left:
        more = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        report += f"; new ones for {'; '.join(left[:SHOWN])}{more}"
    return structure.unflatten(new), report


def _read(source: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(source, str | os.PathLike):
        folder = absolute(source)
        inside = folder / CHECKPOINTS
        arrays, _ = read_arrays(inside if inside.is_dir() else folder)
        return repr(os.fspath(source)), arrays
    leaves = jax.tree_util.tree_leaves_with_path(source)
    return "the given states", {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def by_path(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Path without the seed -> [num_seeds, ...]: states of host environments come as a list, one per seed."""
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


def _fitting(there: np.ndarray | None, leaf: Any, seed: int | None) -> np.ndarray | None:
    """The values for a leaf, or None where they do not fit."""
    if there is None or there.dtype != leaf.dtype or there.shape[1:] != (leaf.shape if seed is not None else leaf.shape[1:]):
        return None
    rows = np.arange(leaf.shape[0]) if seed is None else seed
    return there[rows % len(there)]


def _shape(leaf: Any, seed: int | None) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape if seed is not None else leaf.shape[1:]))}]"

"""Members of a run: its seeds, each with the hyperparameters that the run changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.settings.validation import check_count, check_hyperparam, whole
from jaxrl.types import Agent

MAX_SEEDS = 1_000_000
"""Maximum number of seeds. A larger number is a mistake, and would exhaust memory before any other check."""


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return the list of seeds; ``n`` means 0 … n−1."""
    seeds = whole(seeds)
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        if seeds < 1:
            raise ValueError(f"seeds={seeds} must be at least 1 (a number of seeds), or a list of seeds")
        return list(range(check_count("seeds", seeds, at_most=MAX_SEEDS)))
    try:
        listed = np.asarray(seeds).tolist()
    except ValueError:  # a ragged list
        listed = None
    if not isinstance(listed, list) or not listed or not all(type(seed) is int for seed in listed):
        raise TypeError(f"seeds={seeds!r} must be a number of seeds or a list of integers")
    if outside := [seed for seed in listed if not 0 <= seed < 2**32]:
        raise ValueError(f"seeds={seeds!r}: {outside[0]} is outside 0 … 2**32 - 1")
    return listed


def check_hyperparams(agent: Agent, hyperparams: Any, num_seeds: int) -> dict[str, Any] | None:
    """Return the hyperparameters to change, rounded to f32: each a float, or a list of one float per seed."""
    if hyperparams is None:
        return None
    values = hyperparams._asdict() if hasattr(hyperparams, "_asdict") else hyperparams
    if not isinstance(values, Mapping):
        raise TypeError(f"hyperparams must be a mapping or the algorithm's NamedTuple, not {type(values).__name__}")
    checked: dict[str, Any] = {}
    for name, value in values.items():
        for number in np.ravel(value).tolist():
            check_hyperparam(type(agent.hyperparams), name, number)
        array = np.asarray(value, np.float32)
        if array.shape not in ((), (num_seeds,)):
            raise ValueError(
                f"hyperparams[{name!r}] has shape {array.shape}: it must be one number, or one per seed ({num_seeds},)"
            )
        checked[name] = array.tolist()
    return checked


def check_members(seeds: Sequence[int], hyperparams: Mapping[str, Any] | None = None) -> None:
    """Check that no two members of a run are equal. A seed may occur several times with different hyperparameters."""
    columns = [np.broadcast_to(values, len(seeds)).tolist() for values in (hyperparams or {}).values()]
    members = list(zip(seeds, *columns, strict=True))
    if twice := [member for member in members if members.count(member) > 1]:
        same = " with the same hyperparameters" if hyperparams else ""
        raise ValueError(
            f"seeds={seeds!r}: {twice[0][0]} occurs twice{same}: remove it, or give each occurrence other hyperparameters"
        )

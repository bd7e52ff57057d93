"""Members of a run: its seeds, each with the hyperparameters that the run changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.settings.aliases import shortened
from jaxrl.settings.validation import check_hyperparam, present
from jaxrl.types import Agent


def check_hyperparams(agent: Agent, hyperparams: Any, num_seeds: int) -> dict[str, Any] | None:
    """Return the hyperparameters to change, rounded to f32: each a float, or a list of one float per seed."""
    if hyperparams is None:
        return None
    values = present(hyperparams) if hasattr(hyperparams, "_asdict") else hyperparams
    if not isinstance(values, Mapping):
        raise TypeError(f"hyperparams must be a mapping or the algorithm's NamedTuple, not {type(values).__name__}")
    checked: dict[str, Any] = {}
    for name, value in values.items():
        try:
            numbers = np.asarray(value)
        except ValueError:  # nested lists of different lengths
            raise ValueError(f"hyperparams[{name!r}]={shortened(value)} must be one number, or one per seed") from None
        for number in numbers.ravel().tolist():
            check_hyperparam(agent.hyperparams, name, number)
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
    if repeated := [member for member, number in Counter(members).items() if number > 1]:
        same = " with the same hyperparameters" if hyperparams else ""
        raise ValueError(
            f"seeds={shortened(seeds)}: {repeated[0][0]} occurs twice{same}: remove it, or give each occurrence other "
            "hyperparameters"
        )

"""What the files of a run look like. They may be damaged or somebody else's: what is wrong is said here."""

from __future__ import annotations

import json
from types import NoneType
from typing import Any

import numpy as np

from jaxrl.runtime.logs.records import EVALUATION_RETURN, Record

CONFIG_TYPES: dict[str, tuple[type, ...]] = {
    "id": (str, NoneType),
    "agent": (dict,),
    "agent.settings": (dict,),
    "agent.parts": (dict,),
    "run": (dict,),
    "run.seeds": (list,),
    "run.hyperparams": (dict, NoneType),
    "output": (dict,),
    "spaces": (dict, NoneType),
    "spaces.observation": (dict,),
    "spaces.action": (dict,),
    "versions": (dict,),
}
"""Each after what holds it. The values inside are checked by whom they are given to."""

NEEDED_OF_CONFIG = ("agent", "run", "run.seeds", "spaces.observation", "spaces.action")
"""Where what holds it is there."""

OLDER_KEYS = {"total_steps": "rows"}
"""What log keys of jaxrl 0.1.0 and before are called now."""

COUNTS = ("iteration", "rows")
PER_SEED = ("env_steps", "diverged", EVALUATION_RETURN)
NEEDED_OF_RECORD = (*COUNTS, "seconds", "env_steps", "diverged")


def check_config(config: Any) -> dict[str, Any]:
    """``config.json``, if it can be one.

    Raises:
      ValueError: says what of it is wrong.
    """
    if not isinstance(config, dict):
        raise ValueError(f"it is {_shown(config)}, and no table")
    for path, types in CONFIG_TYPES.items():
        *above, name = path.split(".")
        holder = config.get(above[0]) if above else config
        if holder is None:  # nothing needs it
            continue
        if name not in holder:
            if path in NEEDED_OF_CONFIG:
                raise ValueError(f"it lacks {path!r}")
        elif not isinstance(holder[name], types):
            raise ValueError(f"its {path!r} is {_shown(holder[name])}")
    seeds, hyperparams = config["run"]["seeds"], config["run"].get("hyperparams") or {}
    if not seeds or not all(type(seed) is int for seed in seeds):
        raise ValueError(f"its 'run.seeds' is {_shown(seeds)}")
    for name, values in hyperparams.items():
        each = values if isinstance(values, list) else [values] * len(seeds)
        if len(each) != len(seeds) or not all(type(value) in (int, float) for value in each):
            raise ValueError(f"its 'run.hyperparams.{name}' is {_shown(values)}")
    return config


def check_record(data: Any, shapes: dict[str, tuple[int, ...]]) -> Record:
    """A line of ``records.jsonl``, with arrays for its lists and NaN for what is blank.

    Args:
      shapes: of the values of each key in the lines before, which this one must have too; new keys are added.

    Raises:
      ValueError: says what of it is wrong.
    """
    if not isinstance(data, dict):
        raise ValueError(f"it is {_shown(data)}, and no record")
    data = {OLDER_KEYS.get(key, key): value for key, value in data.items()}
    if missing := [key for key in NEEDED_OF_RECORD if key not in data]:
        raise ValueError(f"it lacks {missing[0]!r}")
    record = {}
    for key, given in data.items():
        record[key] = value = _with_nan(given)
        shape = np.shape(value)
        counts = key not in COUNTS or (type(value) is int and value >= 0)
        per_seed = key not in PER_SEED or len(shape) == 1
        if np.asarray(value).dtype.kind not in "biuf" or not (counts and per_seed):
            raise ValueError(f"its {key!r} is {_shown(given)}")
        if (wanted := shapes.setdefault(key, shape)) != shape:
            raise ValueError(f"its {key!r} has the shape {shape}, and not {wanted} as in the lines before or by config.json")
    return record


def _with_nan(value: Any) -> Any:
    """The number or the array that was made plain for JSON; what is neither is no number here either."""
    if isinstance(value, list):
        try:
            return np.array([_with_nan(each) for each in value])
        except ValueError:  # of lists of several lengths
            return None
    return np.nan if value is None else value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

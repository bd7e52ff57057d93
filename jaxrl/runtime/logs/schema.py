"""Schema of the files of a run. They may be damaged or untrusted; errors name what is wrong."""

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
    "num_agents": (int,),
    "versions": (dict,),
}
"""Types of the entries of ``config.json``; parents come before children. Values inside are checked by the code that uses them."""

NEEDED_OF_CONFIG = ("agent", "run", "run.seeds", "spaces.observation", "spaces.action")
"""Entries that are required if their parent is present."""

OLDER_KEYS = {"total_steps": "rows"}
"""New names of log keys of jaxrl 0.1.0 and before."""

COUNTS = ("iteration", "rows")
PER_SEED = ("env_steps", "diverged", EVALUATION_RETURN)
NEEDED_OF_RECORD = (*COUNTS, "seconds", "env_steps", "diverged")


def check_config(config: Any) -> dict[str, Any]:
    """Return the contents of ``config.json``, or raise ValueError, which names the wrong entry."""
    if not isinstance(config, dict):
        raise ValueError(f"it is {_shown(config)}, not a JSON object")
    for path, types in CONFIG_TYPES.items():
        *above, name = path.split(".")
        holder = config.get(above[0]) if above else config
        if holder is None:  # an optional parent is absent
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
    """Return a line of ``records.jsonl``, with lists as arrays and null as NaN, or raise ValueError, which names the wrong entry.

    Args:
      shapes: shape of each key in the lines before, which this line must match; new keys are added.
    """
    if not isinstance(data, dict):
        raise ValueError(f"it is {_shown(data)}, not a JSON object")
    data = {OLDER_KEYS.get(key, key): value for key, value in data.items()}
    if missing := [key for key in NEEDED_OF_RECORD if key not in data]:
        raise ValueError(f"it lacks {missing[0]!r}")
    record = {}
    for key, raw_value in data.items():
        record[key] = value = _with_nan(raw_value)
        shape = np.shape(value)
        counts = key not in COUNTS or (type(value) is int and value >= 0)
        per_seed = key not in PER_SEED or len(shape) == 1
        if np.asarray(value).dtype.kind not in "biuf" or not (counts and per_seed):
            raise ValueError(f"its {key!r} is {_shown(raw_value)}")
        if (wanted := shapes.setdefault(key, shape)) != shape:
            raise ValueError(f"its {key!r} has the shape {shape}, but must have {wanted} as in config.json or the lines before")
    return record


def _with_nan(value: Any) -> Any:
    """Convert a JSON value to a number or an array, with null as NaN; anything else is rejected later, by its dtype."""
    if isinstance(value, list):
        try:
            return np.array([_with_nan(each) for each in value])
        except ValueError:  # nested lists of different lengths
            return None
    return np.nan if value is None else value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

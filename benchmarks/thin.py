"""Thin results: only the data that tables and learning curves need. Standard library and NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN
from jaxrl.runtime.system.disk import write_atomically

MAX_POINTS = 21
"""Largest number of points of a learning curve: two of five of about 50 chunks."""
DIGITS = 4
"""Significant digits of a curve. More would not be visible."""


def curve_key(history: Mapping[str, Any]) -> str:
    """Return the key of a history's returns: those of training, or of evaluations if there is no episode of training."""
    return TRAINING_RETURN if TRAINING_RETURN in history else EVALUATION_RETURN


def thin_history(history: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Return the learning curve of ``history`` in at most ``MAX_POINTS`` points, evenly spaced, the last one included.

    Points at which no seed has a return are left out.

    Args:
      history: ``env_steps`` and the returns of ``curve_key``, [points, num_seeds].

    Returns:
      ``env_steps``, the mean over seeds: one number per point. The returns: for each point a list of one number per seed, with
      ``DIGITS`` significant digits, or None where a seed has no return.
    """
    key = curve_key(history)
    steps, returns = history["env_steps"], history[key]
    known = np.flatnonzero(~np.isnan(returns).all(axis=1))
    count = min(MAX_POINTS, len(known))
    chosen = known[np.linspace(len(known) - 1, 0, count).round().astype(int)[::-1]] if count else known
    return {
        "env_steps": [round(float(step)) for step in steps[chosen].mean(axis=1)],
        key: [[_short(x) for x in row] for row in returns[chosen]],
    }


def join_histories(histories: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """Join thin histories of one or several seeds each, at the points of the first. Others are interpolated linearly.

    A seed has no return at points that are farther from its known ones than points are apart.
    """
    key, steps, curves = curve_key(histories[0]), np.array(histories[0]["env_steps"], float), list[np.ndarray]()
    spacing = np.ptp(steps) / max(1, len(steps) - 1)
    for each in histories:
        for curve in np.array(each[key], float).T:  # null is NaN
            known = ~np.isnan(curve)
            at = np.array(each["env_steps"], float)[known]
            if not known.any():
                curves.append(np.full(len(steps), np.nan))
                continue
            is_near = (steps >= at[0] - spacing) & (steps <= at[-1] + spacing)
            curves.append(np.where(is_near, np.interp(steps, at, curve[known]), np.nan))
    return {"env_steps": [round(step) for step in steps], key: [[_short(x) for x in point] for point in np.transpose(curves)]}


def _short(x: float) -> float | int | None:
    if np.isnan(x):
        return None
    number = float(f"{x:.{DIGITS}g}")
    return int(number) if number.is_integer() else number


def full_history(thin: Mapping[str, list[Any]]) -> dict[str, np.ndarray]:
    """Return the arrays of a thin history, both [points, num_seeds]; without points, num_seeds is 0."""
    key = curve_key(thin)
    returns = np.array(thin[key] or np.empty((0, 0)), float)  # null is NaN
    steps = np.array(thin["env_steps"], float)[:, None]
    return {"env_steps": np.repeat(steps, returns.shape[1], axis=1), key: returns}


def write_thin(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON without indentation, one line for each of its keys, so that versions of it can be compared."""
    compact = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    lines = (f"{compact(key)}: {compact(value)}" for key, value in result.items())
    write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")

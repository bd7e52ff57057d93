"""Description of the chosen policies of a run, with their scores and those of the others from the records of the run."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np

from jaxrl.runtime.checkpoint.manifest import latest_step
from jaxrl.runtime.console.progress import number
from jaxrl.runtime.logs.files import read_records
from jaxrl.runtime.logs.greedy_gap import greedy_gap
from jaxrl.runtime.logs.records import EVALUATION_RETURN, Record, as_arrays
from jaxrl.runtime.logs.run_folder import BEST, CHECKPOINTS, read_config
from jaxrl.runtime.system.disk import absolute


def chosen(run: str | os.PathLike[str], which: str, step: int) -> str:
    """Describe the best or last policies, of iteration ``step``, and the others:
    ``best policies: iteration 512, evaluation return -927; the last: iteration 976, -31.2``."""
    records = _records(run)
    mine, scores = f"{which} policies: iteration {step}", _scores(records)
    other_name = "last" if which == "best" else "best"
    other = latest_step(absolute(run) / (CHECKPOINTS if which == "best" else BEST))
    if step in scores:
        mine += f", evaluation return {_shown(scores[step])}"
    if other is None or other == step:
        return mine + f", which is also the {other_name}" * (other == step)
    known = [iteration for iteration in scores if iteration <= other]
    theirs = f"iteration {other}" + (f", {_shown(scores[known[-1]])}" if known else "")
    return f"{mine}; the {other_name}: {theirs}"


def greedy_warning(run: str | os.PathLike[str]) -> str | None:
    """Return a warning if the greedy evaluations of a run are far below its training returns, else None."""
    gap = None if read_config(run)["run"]["eval_explore"] else greedy_gap(as_arrays(_records(run)))
    if gap is None:
        return None
    greedy, training = map(_shown, gap)
    return f"its greedy evaluations return {greedy} where training, which explores, returned {training}"


def _records(run: str | os.PathLike[str]) -> list[Record]:
    """Return all records; none if they are damaged, since a policy can be used without them."""
    with contextlib.suppress(ValueError, OSError):
        return read_records(absolute(run), 2**31, len(read_config(run)["run"]["seeds"]))
    return []


def _scores(records: list[Record]) -> dict[int, float]:
    """Return iteration -> evaluation return, mean over seeds, for iterations with an evaluation."""
    means: dict[Any, Any] = {record["iteration"]: record.get(EVALUATION_RETURN, np.nan) for record in records}
    return {iteration: float(np.nanmean(x)) for iteration, x in means.items() if not np.isnan(x).all()}


def _shown(x: float) -> str:
    return number(x, x)

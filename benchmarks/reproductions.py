"""Reproduction of committed scores: the same experiments on other seeds, and whether the intervals overlap."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments import EXPERIMENTS
from benchmarks.markdown import table
from benchmarks.pictures import read_scores
from benchmarks.record import write_result
from benchmarks.scores import train_and_evaluate
from benchmarks.speed import say
from jaxrl.algorithms.presets import interval_text
from jaxrl.runtime.logs.provenance import commit

SHORT = 300.0
"""Seconds of training below which a row is drawn by itself."""
NAME = "reproductions"
"""Name of the result's file."""


def drawn(scores: Path, count: int) -> list[str]:
    """Draw rows at random, of those with a lower limit that need no dataset and trained for less than ``SHORT`` seconds."""
    short = [each["name"] for each in read_scores(scores) if each["train_seconds"] < SHORT and each["name"] in EXPERIMENTS]
    asked = [name for name in short if EXPERIMENTS[name].threshold is not None and not EXPERIMENTS[name].at_most]
    return random.sample([name for name in asked if not EXPERIMENTS[name].data], count)


def measure(names: Sequence[str], scores: Path, out: Path, work: Path, first_seed: int, *, quiet: bool = False) -> dict[str, Any]:
    """Train rows of the table of scores on other seeds, and add them to ``out/reproductions.json``.

    Args:
      names: experiments with a committed score.
      scores: folder of the committed scores.
      work: folder that holds a run until its end.
      first_seed: first of the seeds. Committed scores have those from 0.

    Raises:
      FileNotFoundError: an experiment has no score in the folder.
    """
    path, found = out / f"{NAME}.json", dict[str, Any]()
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))["rows"]
    if unpublished := [name for name in names if not (scores / f"{name}.json").exists()]:
        raise FileNotFoundError(f"no score of {', '.join(unpublished)} in {scores}, to compare with")
    code = commit()  # the results written below would count as changes
    for number, name in enumerate(names, 1):
        last = first_seed + EXPERIMENTS[name].num_seeds - 1
        say(f"{number} of {len(names)}: {name}, seeds {first_seed} to {last}")
        before = json.loads((scores / f"{name}.json").read_text(encoding="utf-8"))
        folder = work / f"{name}-{first_seed}"
        again = train_and_evaluate(EXPERIMENTS[name], folder, quiet, first_seed=first_seed) | {"commit": code}
        kept = ("date", "commit", "seeds", "mean", "interval", "scores", "train_seconds", "hardware")
        found[name] = {key: again[key] for key in kept} | {"published": {key: before.get(key) for key in kept[:5]}}
        write_result(out, NAME, rows=found)
        shutil.rmtree(folder, ignore_errors=True)
        say(f"{name}: {score(again)}, published {score(before)}: {verdict(found[name])}. Its run folder is deleted.")
    same = sum(verdict(found[name]) == "reproduced" for name in names)
    say(f"{same} of {len(names)} reproduced; written to {path}")
    return {"rows": found}


def score(measured: Mapping[str, Any]) -> str:
    return interval_text(measured["mean"], *measured["interval"])


def overlaps(row: Mapping[str, Any]) -> bool:
    """Return whether the two 95 % intervals have a point in common."""
    (low, high), (other_low, other_high) = row["interval"], row["published"]["interval"]
    return low <= other_high and other_low <= high


def verdict(row: Mapping[str, Any]) -> str:
    if overlaps(row):
        return "reproduced"
    return "higher" if row["mean"] > row["published"]["mean"] else "lower"


def missed(result: Mapping[str, Any]) -> bool:
    """Return whether a score is lower than the published one, beyond both intervals."""
    return any(verdict(row) == "lower" for row in result["rows"].values())


def reproductions_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for name, row in result["rows"].items():
        seeds, code = f"{row['seeds'][0]} to {row['seeds'][-1]}", (row["commit"] or "–")[:8]
        cells = [score(row["published"]), seeds, score(row), row["date"][:10], code, row["hardware"]["cpu"], verdict(row)]
        rows.append([name, *cells])
    lines = [
        "## Reproductions",
        table(["experiment", "published", "seeds", "mean [95 %]", "date", "commit", "processor", "verdict"], rows),
        "Rows of the table of scores, trained again on other seeds by `python -m benchmarks reproduce`. *reproduced*: the two "
        "intervals overlap.",
    ]
    return "\n\n".join(lines)

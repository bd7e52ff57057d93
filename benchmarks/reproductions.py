"""Reproduction of committed scores: the same experiments on other seeds, and whether the intervals overlap."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.experiments import EXPERIMENTS
from benchmarks.markdown import table
from benchmarks.pictures import read_scores
from benchmarks.record import write_result
from benchmarks.scores import train_and_evaluate
from benchmarks.speed import say
from jaxrl.algorithms.presets import interval_text

SHORT = 300.0
"""Seconds of training below which a row is drawn by itself."""
NAME = "reproductions"
"""Name of the result's file."""


def drawn(scores: Path, count: int) -> list[str]:
    """Draw ``count`` rows at random, of those that need no dataset and trained for less than ``SHORT`` seconds."""
    known = [each for each in read_scores(scores) if each["name"] in EXPERIMENTS and not each["experiment"].get("data")]
    return random.sample([each["name"] for each in known if each["train_seconds"] < SHORT], count)


def measure(names: Iterable[str], scores: Path, out: Path, work: Path, first_seed: int, *, quiet: bool = False) -> dict[str, Any]:
    """Train rows of the table of scores on other seeds, and add them to ``out/reproductions.json``.

    Args:
      names: experiments with a committed score.
      scores: folder of the committed scores.
      work: folder that holds a run until its end.
      first_seed: first of the seeds. Committed scores have those from 0.

    Raises:
      FileNotFoundError: an experiment has no committed score.
    """
    path, found = out / f"{NAME}.json", dict[str, Any]()
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))["rows"]
    result = dict[str, Any]()
    for name in names:
        before = json.loads((scores / f"{name}.json").read_text(encoding="utf-8"))
        folder = work / f"{name}-{first_seed}"
        again = train_and_evaluate(EXPERIMENTS[name], folder, quiet, first_seed=first_seed)
        kept = ("date", "commit", "seeds", "mean", "interval", "scores", "train_seconds", "hardware")
        found[name] = {key: again[key] for key in kept} | {"published": {key: before.get(key) for key in kept[:5]}}
        result = write_result(out, NAME, rows=found)
        shutil.rmtree(folder, ignore_errors=True)
        say(f"{name}: {score(again)}, published {score(before)}: {verdict(found[name])}")
    return result


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
        seeds, commits = f"{row['seeds'][0]} to {row['seeds'][-1]}", (row["commit"] or "–")[:8]
        rows.append([name, seeds, score(row), score(row["published"]), commits, row["hardware"]["cpu"], verdict(row)])
    header = ["experiment", "seeds", "mean [95 %]", "published", "commit", "processor", ""]
    lines = [
        "## Reproductions",
        f"* `{result['command']}`, {result['date']}, jax {result['versions']['jax']}",
        table(header, rows),
        "Rows of the table of scores, trained again on other seeds. *reproduced*: the two intervals overlap.",
    ]
    return "\n\n".join(lines)

"""Datasets for the scores of offline learning: made by jaxrl's own runs, kept outside of git, and recorded with their digests.

A training stops at the stages of its recipes. Each stage has a folder, and the next one continues from a copy of it. So all
policies and buffers of an environment are those of one run, and a dataset that was deleted is made again without training.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxrl
from benchmarks import machine
from benchmarks.markdown import table
from benchmarks.recipes import RECIPES, Part, Training, path_of, stages_of
from benchmarks.scores import train_seconds
from benchmarks.speed import say
from benchmarks.thin import write_thin
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.runtime.console.progress import duration, spinner
from jaxrl.runtime.datasets.collect import collect_dataset
from jaxrl.runtime.datasets.files import load_dataset, save_dataset
from jaxrl.runtime.logs.provenance import installed_versions
from jaxrl.runtime.logs.records import EVALUATION_RETURN
from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices
from jaxrl.runtime.system.disk import write_atomically
from jaxrl.training import num_iterations

RUNS = "runs"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def make(names: Sequence[str], folder: Path, results: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Make the datasets that do not exist with the same recipe, and record all of them in ``results/datasets.json``.

    Args:
      names: keys of ``RECIPES``; empty: all.
      quiet: Print nothing.

    Returns:
      The contents of ``datasets.json``: name -> record.
    """
    request_cpu_devices()
    enable_compilation_cache()
    names = list(names) or list(RECIPES)
    tell = (lambda text: None) if quiet else say
    for number, name in enumerate(names, 1):
        record, label = existing(folder, name), f"{name}, {number} of {len(names)}"
        if record is None:
            tell(f"{label}: making {path_of(folder, name)}")
            record = make_one(name, folder, quiet)
            tell(f"{label}: {summary(record)}")
        else:
            tell(f"{label}: {path_of(folder, name)} exists with this recipe")
        recorded = add_record(results, name, record)
    return recorded


def summary(record: Mapping[str, Any]) -> str:
    returns, seconds = record["returns"], record["seconds"]
    of_returns = f"returns {returns['mean']:.1f} on average, {returns['min']:.1f} to {returns['max']:.1f}"
    return f"{record['rows']:,} rows of {record['episodes']:,} episodes, {of_returns}, in {duration(seconds)}"


def recipe_of(name: str) -> list[dict[str, Any]]:
    """Return a recipe as read back from JSON, so that equal recipes compare equal. The stages before a part belong to it."""

    def described(part: Part) -> dict[str, Any]:
        before = [stage for stage in stages_of(part.training) if stage < part.stage]
        return part._asdict() | {"training": part.training._asdict(), "stages_before": before}

    return json.loads(json.dumps([described(part) for part in RECIPES[name]]))


def existing(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the record beside a dataset if both exist and its recipe is the present one, else None."""
    path = path_of(folder, name)
    record = read_json(path.with_suffix(".json"))
    return record if record and path.is_file() and record.get("recipe") == recipe_of(name) else None


def read_json(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, json.JSONDecodeError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def make_one(name: str, folder: Path, quiet: bool) -> dict[str, Any]:
    """Train what is missing, write the dataset, and return its record."""
    parts, behaviours, start = list[Dataset](), list[dict[str, Any]](), time.perf_counter()
    for number, part in enumerate(RECIPES[name]):
        run, trained = train_to(part.training, part.stage, folder / RUNS, quiet)
        parts.append(rows_of(part, run, number))
        behaviours.append({"source": part.source, "rows": parts[-1].info.rows, **(trained if part.source != "random" else {})})
    data = parts[0] if len(parts) == 1 else joined(parts)
    path = path_of(folder, name)
    save_dataset(path, data)
    record = {
        "digest": data.info.digest,
        "rows": data.info.rows,
        "episodes": data.info.episodes,
        "returns": statistics_of(data),
        "bytes": path.stat().st_size,
        "parts": behaviours,
        "recipe": recipe_of(name),
        "seconds": time.perf_counter() - start,
        "command": machine.command(),
        "date": machine.timestamp(),
        "versions": installed_versions(),
        "hardware": machine.hardware(),
    }
    write_atomically(path.with_suffix(".json"), json.dumps(record, indent=1) + "\n")
    return record


def add_record(results: Path, name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write a record to ``datasets.json``, and return its contents with those of other datasets."""
    results.mkdir(parents=True, exist_ok=True)
    path = results / "datasets.json"
    known = (read_json(path) or {}) | {name: dict(record)}
    ordered = {each: known[each] for each in sorted(known, key=lambda each: [*RECIPES, each].index(each))}
    write_thin(path, ordered)
    return ordered


# -------------------------------------------------------------------------------------------------------------------- training


def train_to(training: Training, stage: int, runs: Path, quiet: bool) -> tuple[Path, dict[str, Any]]:
    """Train to a stage, through those before it.

    Returns:
      Folder of the run, and what it reached: its rows, its mean greedy return, and the seconds of training in all.
    """
    name, earlier = f"{training.name}-{stage}", [other for other in stages_of(training) if other < stage]
    run, path = runs / name, runs / f"{name}.json"
    described = json.loads(json.dumps(training._asdict() | {"stages": [*earlier, stage]}))
    known = read_json(path)
    if known and known["training"] == described and run.is_dir():
        return run, known["trained"]
    if known:  # of another recipe
        path.unlink()
        shutil.rmtree(run, ignore_errors=True)
    if earlier and not run.exists():
        before, _ = train_to(training, earlier[-1], runs, quiet)
        copying = runs / f"{name}.copying"
        shutil.rmtree(copying, ignore_errors=True)
        shutil.copytree(before, copying)
        copying.rename(run)
    trained = train(training, stage, run, quiet)
    write_atomically(path, json.dumps({"training": described, "trained": trained}) + "\n")
    return run, trained


def train(training: Training, stage: int, run: Path, quiet: bool) -> dict[str, Any]:
    """Run a training to a stage; an interrupted one resumes. Return what it reached."""
    agent = getattr(jaxrl, training.builder)(training.env, **training.settings)
    _, history = jaxrl.run(
        agent,
        stage,
        seeds=[training.seed],
        out=run,
        eval_every=num_iterations(agent, training.total_steps),  # at the beginning and at the end only
        hyperparams={"total_steps": float(training.total_steps)},
        keep_checkpoints=1,
        tensorboard=False,
        quiet=quiet,
    )
    return {
        "stage": int(history["rows"][-1]),
        "greedy_return": float(history[EVALUATION_RETURN][-1, 0]),
        "train_seconds": train_seconds(history),
    }


# ------------------------------------------------------------------------------------------------------------------------ rows


def rows_of(part: Part, run: Path, number: int) -> Dataset:
    """Return the rows of a part. ``number`` is its place in the dataset, from which its random numbers differ."""
    if part.source == "replay":
        return replay_of(part.training, run)
    which = {"policy": "last", "random": "random"}[part.source]
    with spinner(f"collecting from {run.name}") as show:
        return collect_dataset(
            run,
            part.rows,
            policy=which,
            explore=True,
            collect_seed=number,
            say=lambda rows: show(f"{rows:,} of {part.rows:,} rows"),
        )


def replay_of(training: Training, run: Path) -> Dataset:
    """Return the rows in the replay buffer of a run's last checkpoint, through a file of ``jaxrl.save_replay``."""
    states, _ = jaxrl.resume(run, quiet=True)
    file = run.with_name(f"{run.name}-replay.npz")
    jaxrl.save_replay(file, jax.tree.map(lambda x: x[0], states))
    try:
        return load_dataset(file, training.env)
    finally:
        file.unlink()


def joined(parts: Sequence[Dataset]) -> Dataset:
    """Return datasets of the same spaces as one, in their order."""
    rows: Any = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(jax.device_get(part.rows()) for part in parts))
    return make_dataset(rows, parts[0].info)


def statistics_of(data: Dataset) -> dict[str, Any]:
    """Return statistics of the episodes' returns. Those that the end of collecting cut off count too."""
    returns = np.asarray(data.returns_to_go)[np.asarray(data.starts)].astype(np.float64)
    quantiles = dict(zip(map(str, QUANTILES), np.quantile(returns, QUANTILES).tolist(), strict=True))
    found = {name: float(getattr(returns, name)()) for name in ("mean", "std", "min", "max")}
    return found | {"quantiles": quantiles}


# ---------------------------------------------------------------------------------------------------------------------- report


def datasets_report(result: Mapping[str, Any]) -> str:
    """Return the records as Markdown."""
    rows = []
    for name, record in result.items():
        returns = record["returns"]
        spread = [returns["min"], *(returns["quantiles"][name] for name in ("0.05", "0.5", "0.95")), returns["max"]]
        reached = [f"{part['greedy_return']:.0f}" for part in record["parts"] if part["source"] == "policy"]
        rows.append(
            [
                name,
                f"{record['rows']:,}",
                f"{record['episodes']:,}",
                f"{returns['mean']:.0f}",
                " … ".join(f"{x:.0f}" for x in spread),
                ", ".join(reached) or "–",
                f"`{record['digest'][:12]}`",
            ]
        )
    header = ["dataset", "rows", "episodes", "mean return", "min … 5 % … median … 95 % … max", "greedy", "SHA-256"]
    dates = sorted(record["date"] for record in result.values())
    packages = " or ".join(sorted({record["versions"]["jax"] for record in result.values()}))
    lines = [
        "## Datasets",
        f"* `python -m benchmarks datasets`, {dates[0]} to {dates[-1]}\n* jax {packages}",
        table(header, rows),
        "Returns of the episodes in a dataset. *greedy*: mean return of 128 greedy episodes of the policy that collected, which "
        "explored when it did. `benchmarks/recipes.py` has the recipes.",
    ]
    return "\n\n".join(lines)

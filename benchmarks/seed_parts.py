"""Scores trained one seed at a time, on several cores or machines, for experiments that take days."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiment import Experiment
from benchmarks.scores import bootstrap_interval, describe, finished, train_and_evaluate
from benchmarks.thin import join_histories, write_thin
from jaxrl.runtime.console.progress import duration

PARTS = "seeds"
"""Folder of the parts, in that of the scores."""
NEED_ALL_SEEDS = ("last_episodes", "data", "against", "further_opponents", "most_above", "least_correlation")
"""Fields of experiments that measure more than greedy returns."""


def check_seed(experiment: Experiment, seed: int) -> None:
    """Raise ValueError if the experiment has no such seed, or if more is measured than greedy returns."""
    if not 0 <= seed < experiment.num_seeds:
        raise ValueError(f"{experiment.name} has the seeds 0 to {experiment.num_seeds - 1}, not {seed}")
    if more := [name for name in NEED_ALL_SEEDS if getattr(experiment, name) != Experiment._field_defaults[name]]:
        raise ValueError(f"the seeds of {experiment.name} cannot be trained apart, because of its {', '.join(more)}")


def run_seed(
    experiment: Experiment, seed: int, out: Path, work: Path, *, force: bool = False, quiet: bool = False
) -> dict[str, Any] | None:
    """Train one seed of an experiment, or read its existing part. With the last part, write the result of all seeds.

    Args:
      out: Folder for ``NAME.json``. Parts are in ``seeds/NAME-SEED.json`` until all are there. A result of the same experiment
        with fewer seeds stands for the parts of its seeds.
      work: Folder that holds the run in ``NAME-SEED/`` until its end; the same command resumes it.
      force: Run it even if its part, the whole result, or a partial run, exists. A seed of a result with fewer seeds is not run.

    Returns:
      The result of all seeds; None while parts are missing.

    Raises:
      ValueError: see ``check_seed``.
    """
    check_seed(experiment, seed)
    path, folder = _part(experiment, seed, out), work / f"{experiment.name}-{seed}"
    tell = (lambda text: None) if quiet else print
    if not force and (done := finished(out / f"{experiment.name}.json", experiment)):
        tell(f"{experiment.name}: the result of all seeds exists (--force runs this seed again)")
        return done
    if force:
        shutil.rmtree(folder, ignore_errors=True)
        path.unlink(missing_ok=True)
    alone, earlier = experiment._replace(num_seeds=1), _of_fewer_seeds(experiment, out)
    if earlier is not None and seed in earlier["seeds"]:
        tell(f"{experiment.name}, seed {seed}: {earlier['scores'][seed]:.1f}, in the result of {len(earlier['seeds'])} seeds")
        return join_if_complete(experiment, out, tell)
    if (part := finished(path, alone)) is None:
        part = train_and_evaluate(alone, folder, quiet, first_seed=seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_thin(path, part)
        shutil.rmtree(folder, ignore_errors=True)
    tell(f"{experiment.name}, seed {seed}: {part['mean']:.1f}; trained in {duration(part['train_seconds'])}")
    return join_if_complete(experiment, out, tell)


def join_if_complete(experiment: Experiment, out: Path, tell: Callable[[str], object]) -> dict[str, Any] | None:
    """Write the result of all seeds and delete the parts, or tell which seeds are missing and return None."""
    earlier = _of_fewer_seeds(experiment, out)
    seeds = range(0 if earlier is None else len(earlier["seeds"]), experiment.num_seeds)
    paths = [_part(experiment, seed, out) for seed in seeds]
    parts = [finished(path, experiment._replace(num_seeds=1)) for path in paths]
    if missing := [seed for seed, part in zip(seeds, parts, strict=True) if part is None]:
        again = " --force" * (finished(out / f"{experiment.name}.json", experiment) is not None)
        tell(f"{experiment.name}: still to train: {', '.join(f'--seed {seed}{again}' for seed in missing)}")
        return None
    result = joined(experiment, [part for part in (earlier, *parts) if part is not None])
    write_thin(out / f"{experiment.name}.json", result)
    for path in paths:
        path.unlink(missing_ok=True)  # another process may join the same parts
    verdict = "passed" if result["passed"] else "NOT passed"
    tell(f"{experiment.name}: {result['mean']:.1f}; required: {experiment.asked}, {verdict}")
    return result


def joined(experiment: Experiment, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of an experiment from those of its seeds, one or several in each part, in their order."""
    scores = np.concatenate([part["scores"] for part in parts])
    together: dict[str, Any] = {
        "experiment": describe(experiment),
        "asked": experiment.asked,
        "passed": experiment.passes(scores.tolist()),
        "mean": float(scores.mean()),
        "interval": bootstrap_interval(scores),
        "scores": scores.tolist(),
        "seeds": [*range(experiment.num_seeds)],
        "train_seconds": sum(part["train_seconds"] for part in parts),
        "command": f"python -m benchmarks scores {experiment.name} --seed SEED",
        "date": max(part["date"] for part in parts),
        "commit": _all(part["commit"] for part in parts),
        "hardware": parts[0]["hardware"] | {"cpu": _all(part["hardware"]["cpu"] for part in parts)},
        "history": join_histories([part["history"] for part in parts]),
    }
    return dict(parts[0]) | together


def _part(experiment: Experiment, seed: int, out: Path) -> Path:
    return out / PARTS / f"{experiment.name}-{seed}.json"


def _of_fewer_seeds(experiment: Experiment, out: Path) -> dict[str, Any] | None:
    """Return the result of the experiment with its first seeds only, from before its number of seeds was raised."""
    path = out / f"{experiment.name}.json"
    fewer = (finished(path, experiment._replace(num_seeds=number)) for number in range(1, experiment.num_seeds))
    return next((result for result in fewer if result is not None), None)


def _all(values: Iterable[str | None]) -> str | None:
    """Join different values by semicolons. Each may itself be joined from several. None: all are unknown."""
    return "; ".join(dict.fromkeys(each for value in values if value for each in value.split("; "))) or None

"""Estimates of the values of a run's policies from a dataset, without an environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.builder.spec import algorithm_name
from jaxrl.replay.dataset import Dataset
from jaxrl.runtime.evaluation.chosen_policy import chosen
from jaxrl.runtime.evaluation.evaluate_runs import finite_seeds
from jaxrl.runtime.evaluation.fitted_q_evaluation import FittedQEvaluation, fitted_q_evaluation
from jaxrl.runtime.evaluation.load_policy import load_policies
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.runtime.logs.run_folder import read_config

DISCOUNT = 0.99
"""Discount for runs of algorithms that have none."""


class RunValues(NamedTuple):
    """Estimated values of the policies of one run."""

    run: str
    algorithm: str
    iteration: int
    """Iteration of the policies."""
    gammas: list[float]
    """The discount for each of the seeds."""
    seeds: list[int]
    estimates: list[FittedQEvaluation]
    """One for each of the seeds."""
    diverged: list[int]
    """Seeds that were excluded because they had diverged."""
    versions: dict[str, str]
    """Versions with which the run was trained."""
    about: str
    """Description of the policies, with the recorded scores of the run's other policies."""


def estimate_run(
    run: str | os.PathLike[str],
    data: Dataset,
    *,
    gamma: float | None = None,
    updates: int = 20_000,
    which: str = "best",
    seeds: Sequence[int] | None = None,
    explore: bool = False,
    trust: str | Iterable[str] = (),
    begin: Callable[[str], None] = lambda text: None,
    say: Callable[[str], None] = lambda text: None,
) -> RunValues:
    """Estimate the values of the policies of one run by ``fitted_q_evaluation``.

    Args:
      gamma: discount per step; default: that of the run.
      updates, explore: as in ``fitted_q_evaluation``.
      which, trust: as in ``load_policy``.
      seeds: a subset of the run's seeds; default: all.
      begin: called with a line that describes the work.
      say: called with the progress.

    Raises:
      FileNotFoundError, ValueError, CheckpointError: as ``load_policy``.
      TypeError, ValueError: as ``fitted_q_evaluation``; all seeds diverged.
    """
    config, name = read_config(run), os.fspath(run)
    saved = load_policies(run, seeds=seeds, which=which, trust=trust)
    sound = finite_seeds(saved.policies) & ~saved.diverged
    if not sound.any():
        raise ValueError(f"{name!r} has no policy to evaluate: its seeds {saved.seeds} all diverged")
    usual = config["agent"]["settings"].get("gamma", DISCOUNT)
    gammas = [each.get("gamma", usual) if gamma is None else gamma for each in saved.hyperparams]
    discounts = [each for each, plays in zip(gammas, sound, strict=True) if plays]
    playing, diverged = (np.array(saved.seeds)[these].tolist() for these in (sound, ~sound))
    begin(f"{name}: values of {len(playing)} polic{'ies' if len(playing) > 1 else 'y'} from {data.info.rows:,} rows")
    estimates = []
    for row, seed in zip(np.flatnonzero(sound), playing, strict=True):

        def tell(done: int, values: Any, seed: int = seed) -> None:
            say(f"seed {seed}: {done:,} of {updates:,} updates, value {np.nanmean(values):.4g}")

        policy = LoadedPolicy(saved.agent, jax.tree.map(lambda x, i=row: x[i], saved.policies), seed=seed, step=saved.step)
        given: dict[str, Any] = {"gamma": gammas[row], "updates": updates, "explore": explore, "progress": tell}
        estimates.append(fitted_q_evaluation(policy, data, **given))
    found = (name, algorithm_name(saved.agent.spec), saved.step, discounts, playing, estimates, diverged)
    return RunValues(*found, config.get("versions", {}), chosen(run, which, saved.step))

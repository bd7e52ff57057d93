"""Comparison of the best trials with the default settings, on seeds that no trial has used.

The best of many noisy scores is too good: of 256 trials by some 2.8 standard errors. So the scores of the search are never those
that it reports alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.runtime.logs.records import EVALUATION_RETURN
from jaxrl.runtime.plots.statistics import seed_interval
from jaxrl.runtime.run import RunDiverged, run
from jaxrl.runtime.search.lanes.lanes import build
from jaxrl.runtime.search.search_file import SearchFile
from jaxrl.runtime.search.space import hyperparams_of, structure_of
from jaxrl.runtime.search.trials import Trials
from jaxrl.training import num_iterations

COMPARISON = "comparison"
"""Folder of its runs."""


class Interval(NamedTuple):
    """Interquartile mean over seeds, and its 95 % bootstrap interval."""

    iqm: float
    low: float
    high: float

    @classmethod
    def of(cls, returns: Sequence[float] | np.ndarray) -> Interval:
        """Return that of the returns of seeds, without those that diverged."""
        known = np.asarray(returns, float)
        known = known[~np.isnan(known)]
        if not known.size:
            return cls(np.nan, np.nan, np.nan)
        return cls(*(float(x[0]) for x in seed_interval(known[None])))


class Compared(NamedTuple):
    """One choice of settings in the comparison."""

    trial: int | None
    """Its trial, and None for the default settings."""
    settings: dict[str, Any]
    searched: Interval | None
    """Of the trial's own seeds, which is too good; None for the default settings."""
    returns: np.ndarray
    """f64[test_seeds], returns at the end; a seed that diverged has the worst of all that are compared."""

    @property
    def tested(self) -> Interval:
        return Interval.of(self.returns)


class Comparison(NamedTuple):
    """The best trials and the default settings."""

    best: list[Compared]
    """In the order of the test."""
    default: Compared

    @property
    def improvement(self) -> float:
        """Probability that a seed of the best is better than one of the default settings (Agarwal et al. 2021), ties half."""
        better = self.best[0].returns[:, None] - self.default.returns[None]
        better = better[~np.isnan(better)]
        return float(((better > 0) + 0.5 * (better == 0)).mean()) if better.size else np.nan

    @property
    def is_better(self) -> bool:
        """Return whether the interval of the best lies above that of the default settings."""
        return bool(self.best[0].tested.low > self.default.tested.high)

    def in_words(self) -> str:
        """Return one sentence."""
        best, default = self.best[0].tested, self.default.tested
        what = f"test {in_words(best)} over {len(self.default.returns)} seeds, default settings {in_words(default)}"
        chance = f"probability of improvement {self.improvement:.0%}"
        return f"{what}, {chance}{'' if self.is_better else ': no better than the default settings'}"


def in_words(interval: Interval) -> str:
    """Format an interval."""
    return f"{interval.iqm:.4g} [{interval.low:.4g}, {interval.high:.4g}]"


def compare(search: SearchFile, trials: Trials, folder: Path | None, *, quiet: bool) -> Comparison | None:
    """Train the best trials and the default settings on the test seeds. Interrupted runs resume. None: no trial has a score."""
    best = [trial for trial in trials.complete[: search.options.top] if not np.isnan(trials.score(trial))]
    if not best:
        return None
    # The default settings come first.
    candidates: list[tuple[dict[str, Any], dict[str, float] | None]] = [({}, None)]
    candidates += [(structure_of(search.space, t.settings), hyperparams_of(search.space, t.settings)) for t in best]
    returns: list[Any] = [None] * len(candidates)
    for number, members in enumerate(_runs([structure for structure, _ in candidates], len(search.test_seeds))):
        out = None if folder is None else folder / COMPARISON / str(number)
        rows = _train(search, candidates[members[0]][0], [candidates[i][1] for i in members], out, quiet=quiet)
        for i, row in zip(members, rows, strict=True):
            returns[i] = row
    # A seed that diverged counts as the worst return of all, as in the search: left out, it would make its settings look better.
    worst = np.nanmin(returns) if not np.isnan(returns).all() else np.nan
    returns = [np.where(np.isnan(row), worst, row) for row in returns]
    tuned = [
        Compared(t.number, t.settings, Interval.of(t.tests[trials.rungs.parts]), row)
        for t, row in zip(best, returns[1:], strict=True)
    ]
    tuned.sort(key=lambda each: -np.nan_to_num(each.tested.iqm, nan=-np.inf))
    return Comparison(tuned, Compared(None, dict(search.settings), None, returns[0]))


MOST_LANES = 32
"""Seeds of a run, unless one candidate has more. On a CPU, 192 lanes of PPO on MinAtar took twice the time per step of 32."""


def _runs(structures: Sequence[dict[str, Any]], num_seeds: int) -> list[list[int]]:
    """Return the candidates of each run: they have the same structure, and so one program, which further runs use again."""
    each, runs = max(1, MOST_LANES // num_seeds), list[list[int]]()
    for i, structure in enumerate(structures):
        if structure not in structures[:i]:
            alike = [j for j, other in enumerate(structures) if other == structure]
            runs += [alike[first : first + each] for first in range(0, len(alike), each)]
    return runs


def _train(
    search: SearchFile,
    structure: dict[str, Any],
    hyperparams: Sequence[dict[str, float] | None],
    out: Path | None,
    *,
    quiet: bool,
) -> np.ndarray:
    """Return the final returns of each choice of hyperparameters, f64[choices, test_seeds]."""
    agent, seeds = build(search, structure), search.test_seeds
    names = {name for each in hyperparams for name in each or {}}
    defaults = agent.hyperparams._asdict()
    columns = {name: np.repeat([float((each or defaults)[name]) for each in hyperparams], len(seeds)) for name in sorted(names)}
    try:
        _, history = run(
            agent,
            search.total_steps,
            seeds=seeds * len(hyperparams),
            hyperparams=columns or None,
            out=out,
            eval_every=num_iterations(agent, search.total_steps),
            eval_episodes=search.options.eval_episodes,
            tensorboard=False,
            quiet=quiet,
        )
    except RunDiverged as error:
        history = error.history
    last = np.where(history["diverged"][-1], np.nan, history[EVALUATION_RETURN][-1])
    return last.reshape(len(hyperparams), len(seeds))

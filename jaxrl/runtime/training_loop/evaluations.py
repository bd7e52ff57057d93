"""``Evaluations``: evaluates the policies of a run, and scores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.runtime.logs.records import (
    EVALUATION_EPISODES,
    EVALUATION_LENGTH,
    EVALUATION_LONGEST,
    EVALUATION_RETURN,
    Record,
    mean_over_seeds,
)
from jaxrl.runtime.trainers.trainer import FAILURES, Driver
from jaxrl.runtime.training_loop.plan import TrainingPlan
from jaxrl.runtime.training_loop.reporting import Blanks
from jaxrl.types import PyTree


@dataclass(eq=False)
class Evaluations:
    """Evaluations of a run, as its plan asks for them."""

    driver: Driver
    plan: TrainingPlan
    blanks: Blanks
    fetch: Callable[[Any], Any]
    """Function that waits for results, and returns them on the host."""
    clock: Callable[[], float]
    """Time in seconds, without compilation."""
    seconds: float = 0.0
    """Seconds spent on evaluations."""
    failure: Exception | None = None
    """Error of an environment that ended an evaluation."""

    def evaluate(self, states: PyTree, trained: int, history: Sequence[Record], diverged: np.ndarray) -> Record:
        """Return the results of an evaluation if one is due, else NaN.

        Args:
          trained: iterations of training so far.
          diverged: bool[num_seeds], seeds that get NaN.

        If an environment fails, the results are NaN too, and ``failure`` is why, so that what was trained can be saved first.
        """
        keys, plan = (EVALUATION_RETURN, EVALUATION_LENGTH), self.plan
        none = {key: np.full(len(diverged), np.nan) for key in (*keys, EVALUATION_LONGEST)} | {EVALUATION_EPISODES: 0}
        if not (episodes := plan.episodes(trained, history)):
            return none
        begin, iteration = self.clock(), plan.warmup_iterations + trained
        try:
            played = self.fetch(self.driver.evaluate(states, iteration, episodes, explore=plan.evaluation.eval_explore))
        except FAILURES as error:
            self.failure = error
            return none
        self.seconds += self.clock() - begin
        longest = np.where(diverged, np.nan, np.asarray(played[1], np.float64).max(1))
        took = {EVALUATION_LONGEST: longest, EVALUATION_EPISODES: episodes}
        with np.errstate(invalid="ignore", over="ignore"):  # means that are not finite are reported
            means = [np.where(diverged, np.nan, np.asarray(x, np.float64).mean(1)) for x in played]
        found = {
            key: self.blanks.leave_out(key, x, ~(np.isfinite(x) | diverged), plan.rows_at(trained))
            for key, x in zip(keys, means, strict=True)
        }
        return found | took

    def score(self, record: Record) -> float:
        """Return the score that selects the best policies, −inf without an evaluation. Untrained policies lose against equally
        good trained ones.

        Returns of self-play do not tell which policy is best, so the last evaluated one is kept.
        """
        score = mean_over_seeds(record.get(EVALUATION_RETURN, np.nan))
        if self.driver.agent.env.players == 2 and score > -np.inf:
            return float(record["iteration"])
        return score if record["iteration"] > self.plan.warmup_iterations else float(np.nextafter(score, -np.inf))

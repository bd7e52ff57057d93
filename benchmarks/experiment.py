"""A score experiment: what is trained, for how long, and the score that it must reach."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import mean
from typing import Any, NamedTuple


class Experiment(NamedTuple):
    """A named score: greedy returns at the end of training."""

    name: str
    builder: str
    """``make_…`` of jaxrl."""
    env: str
    settings: dict[str, Any]
    """Keywords of the builder."""
    total_steps: int
    """Per seed: rows, or with ``data`` updates."""
    num_seeds: int
    threshold: float | None
    """None: the score is for comparison."""
    passing_seeds: int | None = None
    """Number of seeds that must reach the threshold. None: the mean must reach it."""
    episodes: int = 128
    """Greedy episodes per seed."""
    at_most: bool = False
    """For a control: the mean must not exceed the threshold."""
    last_episodes: int = 0
    """If not 0, scores are training returns over at least this number of last episodes. Greedy returns are kept too."""
    run: dict[str, Any] = {}  # noqa: RUF012
    """Keywords of ``jaxrl.run``."""
    data: str = ""
    """Dataset to learn from, of ``python -m benchmarks datasets``; empty: the agent collects its rows."""
    most_above: float | None = None
    """Share of the discounted return by which the critics' values may exceed it, see ``benchmarks.first_values``. It may be
    infinite, for comparison. None: they are not compared."""
    against: str = ""
    """In a game of two players: the opponent, a player of ``jaxrl.arena``. Scores are then shares of the points of ``episodes``
    games, half of them from each side."""
    draw_points: float = 0.5
    """Points of a draw; 1: the share of games that are not lost."""
    further_opponents: dict[str, float] = {}  # noqa: RUF012
    """Further opponents -> share of the points that the mean over seeds must reach; a draw is half a point."""
    least_correlation: float | None = None
    """Required rank correlation of returns with the returns that are asked for, see ``benchmarks.asked_returns``. None: it is not
    measured."""

    @property
    def limit(self) -> str:
        """The required score, in words."""
        if self.threshold is None:
            return "for comparison"
        who = "mean" if self.passing_seeds is None else f"{self.passing_seeds} of {self.num_seeds} seeds"
        return f"{who} {'≤' if self.at_most else '≥'} {self.threshold:g}"

    @property
    def asked(self) -> str:
        """The required score, in words, with the kind of score if it is not a greedy return, and the limit of values."""
        kind = f" in the last {self.last_episodes} episodes of training" if self.last_episodes else ""
        above = "" if self.most_above in (None, math.inf) else f", values at most {self.most_above:.0%} above"
        follow = "" if self.least_correlation is None else f", rank correlation ≥ {self.least_correlation:g}"
        points = f" of the points against {self.against}" if self.against else ""
        points = f" of the games against {self.against} not lost" if self.against and self.draw_points == 1 else points
        return self.limit + points + kind + above + follow

    def passes(
        self,
        scores: list[float],
        above: float = 0.0,
        correlation: float = 1.0,
        opponents: Mapping[str, list[float]] | None = None,
    ) -> bool:
        """Return whether the scores, and the further measurements if there are any, are as required."""
        for name, share in self.further_opponents.items():
            if opponents is None or not mean(opponents[name]) >= share:
                return False
        if self.most_above is not None and not above <= self.most_above:
            return False
        if self.least_correlation is not None and not correlation >= self.least_correlation:
            return False
        if self.threshold is None:
            return True
        if self.at_most:
            return sum(scores) / len(scores) <= self.threshold
        if self.passing_seeds is None:
            return sum(scores) / len(scores) >= self.threshold
        return sum(score >= self.threshold for score in scores) >= self.passing_seeds

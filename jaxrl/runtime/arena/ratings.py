"""Elo ratings of the results of all pairs, by maximum likelihood."""

from __future__ import annotations

import numpy as np

SCALE = 400 / np.log(10)
"""Elo points of a unit of the Bradley–Terry model."""
PRIOR = 1.0
"""Draws that are added to each pair: ratings stay finite if an entrant wins all its games."""
RESAMPLES = 200


def ratings(points: np.ndarray, games: np.ndarray, anchor: int = 0) -> np.ndarray:
    """Return the ratings that make the results likeliest (Bradley & Terry 1952), with draws as half a win (Elo 1978).

    The probability that i beats j is 1 / (1 + 10^((R_j − R_i) / 400)). Newton's method finds the maximum, which exists and is
    unique since each pair has an additional draw.

    Args:
      points: f64[P, P]: wins, plus half of the draws, of the row's entrant against the column's.
      games: f64[P, P]: games of each pair; symmetric.
      anchor: the entrant whose rating is 0.

    Returns:
      f64[P] in Elo points.
    """
    others = ~np.eye(len(games), dtype=bool)
    number = np.where(others, games + PRIOR, 0.0)
    won = np.where(others, points + PRIOR / 2, 0.0).sum(1)
    strength, free = np.zeros(len(games)), np.arange(len(games)) != anchor
    for _ in range(100):
        expected = number / (1 + np.exp(strength[None] - strength[:, None]))
        slope = expected * (1 - expected / np.where(number > 0, number, 1.0))
        hessian = np.diag(slope.sum(1)) - slope
        step = np.linalg.solve(hessian[np.ix_(free, free)], (won - expected.sum(1))[free])
        strength[free] += np.clip(step, -2.0, 2.0)
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
    return SCALE * strength


def intervals(results: np.ndarray, first: np.ndarray, second: np.ndarray, entrants: int, anchor: int = 0) -> np.ndarray:
    """Return 95 % bootstrap intervals of the ratings, f64[P, 2], over games.

    Args:
      results: f64[games]: 1 where the entrant ``first`` won, 0 where ``second`` did, ½ for a draw.
    """
    rng, drawn = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(results), size=len(results))
        drawn.append(ratings(*tables(results[chosen], first[chosen], second[chosen], entrants), anchor))
    return np.quantile(drawn, (0.025, 0.975), axis=0).T


def tables(results: np.ndarray, first: np.ndarray, second: np.ndarray, entrants: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points and the numbers of games of all pairs, f64[P, P]."""
    points, games = np.zeros((2, entrants, entrants))
    np.add.at(points, (first, second), results)
    np.add.at(points, (second, first), 1 - results)
    np.add.at(games, (first, second), 1)
    return points, games + games.T

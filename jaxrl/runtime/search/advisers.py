"""Advisers: which settings to try next.

An answer depends only on the search's seed, the trials so far and the number asked for, so a search that was killed asks what it
would have asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from jaxrl.runtime.search.space import Space, combinations, structure_of
from jaxrl.runtime.search.trials import Trials


class Adviser(Protocol):
    """Chooses the settings of new trials."""

    def ask(self, trials: Trials, count: int, structure: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """Return the settings of the next ``count`` trials, or of fewer if no others are left.

        Args:
          structure: structural settings that they must have; None leaves the first trial free, and the others have its structure.
        """
        ...


class Independent:
    """Draws each trial from its number alone."""

    def __init__(self, space: Space, draw: Callable[[int], np.ndarray]) -> None:
        """``draw`` maps the number of a trial to a point of the unit cube."""
        self._space, self._draw = space, draw

    def ask(self, trials: Trials, count: int, structure: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """See ``Adviser``."""
        drawn, first = list[dict[str, Any]](), len(trials.all)
        for number in range(first, first + count):
            settings = {d.name: d.at(place) for d, place in zip(self._space, self._draw(number), strict=True)}
            structure = structure_of(self._space, settings) if structure is None else structure
            drawn.append({**settings, **structure})
        return drawn


def random(space: Space, seed: int) -> Adviser:
    """Draw uniformly and independently (Bergstra and Bengio 2012)."""
    return Independent(space, lambda number: np.random.default_rng([seed, number]).random(len(space)))


def sobol(space: Space, seed: int) -> Adviser:
    """Draw a scrambled Sobol sequence, which covers the space more evenly than random points."""
    from scipy.stats import qmc

    def draw(number: int) -> np.ndarray:
        sequence = qmc.Sobol(len(space), scramble=True, rng=seed)
        if number:  # SciPy cannot skip 0 points
            sequence.fast_forward(number)
        point: np.ndarray = sequence.random(1)[0]
        return point

    return Independent(space, draw)


class Grid:
    """Tries all combinations of a space of lists, in order."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._combinations = space, combinations(space)

    def ask(self, trials: Trials, count: int, structure: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """See ``Adviser``."""
        left = [each for each in self._combinations if structure_of(self._space, each) == structure]
        asked = sum(structure_of(self._space, trial.settings) == structure for trial in trials.all)
        return left[asked : asked + count]


def of_optuna(method: str) -> Callable[[Space, int], Adviser]:
    """Return the maker of an adviser of Optuna's, which is imported when it is called."""

    def make(space: Space, seed: int) -> Adviser:
        from jaxrl.runtime.search.optuna_adviser import OptunaAdviser

        return OptunaAdviser(method, space, seed)

    return make


ADVISERS: dict[str, Callable[[Space, int], Adviser]] = {
    "grid": Grid,
    "random": random,
    "sobol": sobol,
    **{method: of_optuna(method) for method in ("tpe", "cmaes", "gp", "nsga2")},
}
"""Method of a search -> function of the space and the search's seed."""

"""Strategies of evolution, as options: weights of members from their fitness."""

from __future__ import annotations

from typing import Literal

from jaxrl.evolution.shaping import ShapingFn, best_pairs, centered_rank, raw_fitness, standardize, wierstra
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import PositiveUnit
from jaxrl.types import Array

SHAPINGS: dict[str, ShapingFn] = {
    "centered_rank": centered_rank,
    "wierstra": wierstra,
    "standardize": standardize,
    "raw": raw_fitness,
}


@option("openai")
class OpenAI(Option):
    """Weight all members by their shaped fitness (Salimans et al. 2017, algorithm 1), and step by Adam."""

    shaping: Literal["centered_rank", "wierstra", "standardize", "raw"] = "centered_rank"
    """How fitness becomes weights (``jaxrl.evolution.shaping``)."""

    def weights(self, fitness: Array) -> Array:
        """Return the weights of members with this fitness, f32[N]."""
        return SHAPINGS[self.shaping](fitness)


@option("ars")
class ARS(Option):
    """Weight the best pairs by their returns over the standard deviation of these (Mania et al. 2018, algorithm 2),
    and step by gradient ascent.

    Their step size α is ``learning_rate`` / (2 · ``sigma``).
    """

    elite_share: PositiveUnit = 1.0
    """Share of the pairs that are learnt from, by the better return of each; at least one pair."""

    def weights(self, fitness: Array) -> Array:
        return best_pairs(fitness, self.elite_share)

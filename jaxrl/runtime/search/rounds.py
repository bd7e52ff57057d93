"""Rounds of a search: trials with one structure, which train in one program."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.runtime.search.search_file import SearchFile
from jaxrl.runtime.search.space import all_structures

ROUNDS = 3
"""Rounds in which a structure is chosen, for each structure there is, on average."""


class Rounds:
    """How many trials a round has, and with which structure. A grid has a round for each structure."""

    def __init__(self, search: SearchFile) -> None:
        self._structures, self._options = all_structures(search.space), search.options
        trials, count = search.options.trials, len(self._structures)
        if search.options.method == "grid":
            self._most = trials // count
        elif count == 1:
            self._most = trials
        else:
            self._most = max(1, round(trials / (search.options.batch * ROUNDS * count))) * search.options.batch

    def size(self, number: int) -> int:
        """Return how many trials of a round count. Further ones only keep its lanes busy."""
        return max(0, min(self._most, self._options.trials - number * self._most))

    def structure(self, number: int) -> dict[str, Any] | None:
        """Return the structure of a round. None leaves it to the adviser, once each has been tried."""
        if self._options.method == "grid":
            return self._structures[number]
        rounds = -(-self._options.trials // self._most)
        if number >= min(len(self._structures), max(1, rounds // 2)):
            return None
        return self._structures[np.random.default_rng(self._options.seed).permutation(len(self._structures))[number]]

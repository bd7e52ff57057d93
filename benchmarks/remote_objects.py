"""Objects of the measurement of remote objects. Their processes import NumPy alone."""

from __future__ import annotations

import numpy as np


class Worker:
    """Object whose methods do as little as possible."""

    def __init__(self) -> None:
        self.array = np.ones(0, np.uint8)

    def nothing(self) -> None:
        return None

    def first(self, array: np.ndarray) -> int:
        return int(array[0])

    def large(self, size: int) -> np.ndarray:
        if len(self.array) != size:
            self.array = np.ones(size, np.uint8)
        return self.array


def nothing() -> None:
    """Do nothing, in a process of a pool."""

"""Cases of the benchmark of self-play: plain data from which jaxrl and pgx's example build their programs."""

from __future__ import annotations

from typing import NamedTuple

GAMES, MOVES, SIMULATIONS = 128, 32, 32
"""Games that are played side by side, moves of each in a call, and simulations of a move."""
HIDDEN, CHANNELS, FEATURES = (256, 256), 64, 128
"""Units of the layers of the network ``mlp``; channels of the convolution of ``convolution``, and units of the layer after it."""
TITLES = {"mlp": "layers of 256 and 256", "convolution": "64 channels of 3×3, a layer of 128"}


class Case(NamedTuple):
    """Self-play in Connect Four with one network."""

    network: str
    """Key of ``TITLES``."""

    @property
    def title(self) -> str:
        return TITLES[self.network]


def from_json(fields: dict[str, str]) -> Case:
    return Case(**fields)

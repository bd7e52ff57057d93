"""Cases of the benchmark of teams: plain data from which jaxrl and JaxMARL build their programs, on JaxMARL's environment."""

from __future__ import annotations

from typing import Any, NamedTuple

ENV = "MPE_simple_spread_v3"
"""Environment of JaxMARL. Its episodes have 26 steps in the peer's program, and 25 and a row for the reset in jaxrl's."""
TITLES = {"ippo": "IPPO", "qmix": "QMIX"}
SEEDS = (1, 8)


class Case(NamedTuple):
    """Trainings of one algorithm, with the sizes of JaxMARL's own settings for this environment."""

    algorithm: str
    """Key of ``TITLES``."""
    num_seeds: int = 1
    updates: int = 0
    """Iterations of a training of JaxMARL's, which is a call; 0: ``LENGTHS``."""

    @property
    def title(self) -> str:
        return f"{TITLES[self.algorithm]}, {self.num_seeds} seed{'s' * (self.num_seeds > 1)}"

    @property
    def num_envs(self) -> int:
        return SIZES[self.algorithm][0]

    @property
    def rollout_length(self) -> int:
        return SIZES[self.algorithm][1]

    @property
    def length(self) -> int:
        """Iterations of a call."""
        return self.updates or LENGTHS[self.algorithm]


SIZES = {"ippo": (16, 128), "qmix": (8, 26)}
"""Environments, and rows of each in an iteration."""
LENGTHS = {"ippo": 50, "qmix": 1_000}
BATCH, HIDDEN, EMBEDDING, HYPERNETWORK = 32, 64, 32, 128
"""QMIX: sequences in a batch, units of the network, of the mixer and of its hypernetworks."""


def cases(algorithms: tuple[str, ...]) -> list[Case]:
    return [Case(algorithm, seeds) for algorithm in algorithms for seeds in SEEDS]


def from_json(fields: dict[str, Any]) -> Case:
    return Case(**fields)

"""Cases of the benchmark of offline learning: plain data from which jaxrl and JAX-CORL build their programs, on the same rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ALGORITHMS = {"iql": "IQL", "td3bc": "TD3+BC", "cql": "CQL"}
"""Name -> title."""
BUILDERS = {"iql": "make_iql", "td3bc": "make_td3", "cql": "make_cql"}
"""Name -> ``make_…`` of jaxrl."""
SIZES = (((64, 64), 1), ((256, 256), 1), ((64, 64), 8))
"""Hidden sizes of all networks, and number of seeds."""
ROWS, EPISODE = 100_000, 1_000
"""Rows of the dataset, and of an episode."""
OBSERVATION, ACTION = 17, 6
"""Numbers in an observation and in an action, as in HalfCheetah."""


class Case(NamedTuple):
    """Updates of one algorithm."""

    algorithm: str
    """Key of ``ALGORITHMS``."""
    hidden_sizes: tuple[int, ...]
    num_seeds: int = 1
    batch_size: int = 256
    rows: int = ROWS

    @property
    def title(self) -> str:
        sizes = "×".join(map(str, (len(self.hidden_sizes), self.hidden_sizes[0])))
        return f"{ALGORITHMS[self.algorithm]}, {sizes}, {self.num_seeds} seed{'s' * (self.num_seeds > 1)}"


def cases(algorithms: tuple[str, ...]) -> list[Case]:
    return [Case(algorithm, sizes, seeds) for algorithm in algorithms for sizes, seeds in SIZES]


class Transitions(NamedTuple):
    """Rows [N, ...] of episodes that a limit cuts off, as f32."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray


def random_rows(number: int) -> Transitions:
    """Return random transitions, the same in every process. Their values do not change the work of an update."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(number, OBSERVATION)).astype(np.float32)
    action = rng.uniform(-1, 1, (number, ACTION)).astype(np.float32)
    reward = rng.normal(size=number).astype(np.float32)
    next_obs = np.concatenate([obs[1:], rng.normal(size=(1, OBSERVATION)).astype(np.float32)])
    return Transitions(obs, action, reward, next_obs, np.zeros(number, np.float32))


def from_json(fields: dict[str, Any]) -> Case:
    return Case(**fields | {"hidden_sizes": tuple(fields["hidden_sizes"])})

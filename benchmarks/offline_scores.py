"""Further experiments of offline learning, beside the presets: which algorithm learns from which dataset, and its score."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from jaxrl.algorithms.presets import SMALL
from jaxrl.algorithms.presets.offline import PENDULUM_CQL


class Task(NamedTuple):
    """Settings that all algorithms share on the datasets of an environment."""

    env: str
    settings: dict[str, Any]
    updates: int
    num_seeds: int


TASKS = {
    "pendulum": Task("Pendulum-v1", SMALL, 50_000, 8),
    "cartpole": Task("CartPole-v1", SMALL, 50_000, 8),
    "halfcheetah": Task("envpool:HalfCheetah-v4", {}, 100_000, 3),
}
"""Start of a dataset's name -> task. Networks are 2×64, for HalfCheetah the default of 2×256."""

NORMALIZED = {"critic": {"layer_norm": True}}
TD3BC = {"cloning": {"name": "td3_bc", "alpha": 1.0}, **NORMALIZED}
REBRAC = {"cloning": {"name": "rebrac", "actor_weight": 0.2, "critic_weight": 0.1}, **NORMALIZED}
IQL = {"model": {"layer_norm": True}, **NORMALIZED, "learning_rate": 1e-3, "actor_learning_rate": 1e-3}
"""Settings on HalfCheetah. Networks are normalised and IQL learns faster, as updates are a tenth of the papers' or fewer. With a
cloning term, policies stay nearer to the data than with the defaults, which are the papers' for a million rows: these have
100,000."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("make_bc", {}),
    "bestbc": ("make_bc", {"best": 0.4}),
    "iql": ("make_iql", IQL),
    "td3bc": ("make_td3", TD3BC),
    "rebrac": ("make_td3", REBRAC),
    "cql": ("make_sac", PENDULUM_CQL),
    "cql50": ("make_sac", PENDULUM_CQL | {"conservative": {"name": "cql", "weight": 50.0}}),
    "sac": ("make_sac", {}),
    "dqn": ("make_dqn", {}),
}
"""Name in experiments -> builder and settings.

From an expert alone, CQL needs a larger weight: with the preset's 0.3, values are 88 % above the returns after 30,000 updates.
With 5, 20 and 50, those of one seed are 64, 19 and 8 % above after 9,000.
"""


class Bar(NamedTuple):
    """The score that an algorithm must reach on a dataset."""

    variant: str
    data: str
    """Name of a dataset of ``benchmarks.recipes``."""
    threshold: float | None = None
    """None: the score is for comparison."""
    at_most: bool = False
    """For a control: the mean must not exceed the threshold."""
    updates: int | None = None
    """Length, if it is not that of the task."""
    most_above: float | None = None
    """As in ``benchmarks.experiments.Experiment``."""

    @property
    def name(self) -> str:
        return f"{self.variant}-{self.data}"

    @property
    def task(self) -> Task:
        return TASKS[self.data.partition("-")[0]]

    @property
    def builder(self) -> str:
        return VARIANTS[self.variant][0]

    @property
    def settings(self) -> dict[str, Any]:
        return self.task.settings | VARIANTS[self.variant][1]


CONSERVATIVE = 0.05
"""Share of the discounted return by which the values of CQL may exceed it."""

BARS = (
    *(Bar("bc", f"pendulum-{data}", -400, at_most=True) for data in ("replay", "mixed")),
    Bar("cql", "pendulum-replay", -250, updates=30_000, most_above=CONSERVATIVE),
    Bar("cql50", "pendulum-expert", -250, updates=30_000, most_above=CONSERVATIVE),
    *(Bar("sac", f"pendulum-{data}", updates=30_000, most_above=math.inf) for data in ("replay", "mixed", "expert")),
    Bar("dqn", "cartpole-mixed"),
    Bar("bc", "halfcheetah-medium", 4_962),
    *(Bar(variant, "halfcheetah-medium-expert", 8_969, updates=50_000) for variant in ("bestbc", "iql", "td3bc", "rebrac")),
)
"""On HalfCheetah, and for BC in the presets, thresholds are shares of what the policies that collected reached while they
explored, a mean over whole episodes of the datasets in the results: within 5 % of it, and 0.9 of the expert's."""

"""Experiments of offline learning, as plain data: which algorithm learns from which dataset, and what it must reach."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from jaxrl.algorithms.presets import SMALL


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

DISCRETE_CQL = {"conservative": {"name": "cql", "weight": 4.0}, "learning_rate": 1e-3, "adam_eps": 1e-5}
"""The weight is that of the paper for small datasets; with 1, three of eight seeds reach 475."""
CQL = {
    "conservative": {"name": "cql", "weight": 0.3},
    "learning_rate": 3e-4,
    "actor_learning_rate": 1e-4,
    "temperature": {"learning_rate": 1e-4},
}
"""Those of ``make_cql``, with a smaller weight, as actions of the data deserve little trust."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("make_bc", {}),
    "iql": ("make_iql", {}),
    "td3bc": ("make_td3", {"cloning": "td3_bc"}),
    "rebrac": ("make_td3", {"cloning": "rebrac", "critic": {"layer_norm": True}}),
    "cql": ("make_sac", CQL),
    "sac": ("make_sac", {}),
    "dqn": ("make_dqn", {}),
    "discretecql": ("make_dqn", DISCRETE_CQL),
    "dt": ("make_dt", {"model": {"hidden_sizes": (64,), "core": "attention", "core_size": 64}}),
}
"""Name in experiments -> builder and settings."""
ON_PENDULUM: dict[str, dict[str, Any]] = {
    "td3bc": {"cloning": {"name": "td3_bc", "alpha": 40.0}},
}
"""Settings that differ on Pendulum, where actions of the data deserve less weight."""


class Bar(NamedTuple):
    """The score that an algorithm must reach on a dataset."""

    variant: str
    data: str
    """Name of a dataset of ``benchmarks.recipes``."""
    threshold: float | None = None
    """None: the score is for comparison."""
    at_most: bool = False
    """For a control: the mean must not exceed the threshold."""
    passing_seeds: int | None = None
    """Number of seeds that must reach the threshold. None: the mean must reach it."""
    updates: int | None = None
    """Length, if it is not that of the task."""
    most_above: float | None = None
    least_correlation: float | None = None
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
        on_pendulum = ON_PENDULUM if self.task is TASKS["pendulum"] else {}
        return self.task.settings | VARIANTS[self.variant][1] | on_pendulum.get(self.variant, {})


BARS = (
    Bar("bc", "pendulum-expert", -158),
    *(Bar("bc", f"pendulum-{data}", -400, at_most=True) for data in ("replay", "mixed")),
    *(Bar(variant, f"pendulum-{data}", -200) for data in ("replay", "mixed") for variant in ("iql", "td3bc")),
    *(Bar("cql", f"pendulum-{data}", -250, updates=30_000, most_above=0.05) for data in ("replay", "mixed")),
    Bar("cql", "pendulum-expert", updates=30_000, most_above=0.05),
    *(Bar("sac", f"pendulum-{data}", updates=30_000, most_above=math.inf) for data in ("replay", "mixed", "expert")),
    Bar("iql", "cartpole-mixed", 475, passing_seeds=7, updates=20_000),
    Bar("discretecql", "cartpole-mixed", 475, passing_seeds=7),
    Bar("dqn", "cartpole-mixed"),
    Bar("dt", "cartpole-mixed", 450, updates=2_000, least_correlation=0.9),  # of 64 sequences
    Bar("bc", "halfcheetah-medium", 4_237),
    *(Bar(variant, "halfcheetah-medium-expert", 8_673) for variant in ("iql", "td3bc", "rebrac")),
)
"""Those of BC, and on HalfCheetah, are shares of what the policies that collected reached while they explored, a mean over whole
episodes: within 5 % of it, and 0.9 of the expert's."""

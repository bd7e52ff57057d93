"""Presets for learning from datasets, with a score that was measured for them."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.presets.preset import Preset, Score
from jaxrl.algorithms.presets.settings import CPU_25_17, SMALL

PENDULUM_TD3BC = {**SMALL, "cloning": {"name": "td3_bc", "alpha": 40.0}}
"""Half of the rows or more are of poor policies, so their actions deserve less weight than on the paper's sets."""
PENDULUM_CQL = {
    **SMALL,
    "conservative": {"name": "cql", "weight": 0.3},
    "learning_rate": 3e-4,
    "actor_learning_rate": 1e-4,
    "temperature": {"learning_rate": 1e-4},
}
"""The settings of ``make_cql``, with a smaller weight for the same reason."""
CARTPOLE_CQL = {
    **SMALL,
    "conservative": {"name": "cql", "weight": 4.0},
    "learning_rate": 1e-3,
    "adam_eps": 1e-5,
}
"""The weight is that of the paper for small datasets; with 1, three of eight seeds reach a return of 475."""
CARTPOLE_DT = {"model": {"hidden_sizes": (64,), "core": "attention", "core_size": 64}}


def _preset(
    variant: str,
    algorithm: str,
    data: str,
    settings: dict[str, Any],
    updates: int,
    score: Score,
    threshold: float,
    passing: int | None = None,
) -> Preset:
    env = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}[data.partition("-")[0]]
    return Preset(f"{variant}-{data}", algorithm, env, settings, updates, 8, score, threshold, passing, dataset=data)


OFFLINE = (
    _preset("bc", "bc", "pendulum-expert", SMALL, 50_000, Score(-156.1, -161.8, -149.9, 98, CPU_25_17), -158),
    _preset("iql", "iql", "pendulum-replay", SMALL, 50_000, Score(-175.0, -181.8, -167.5, 213, CPU_25_17), -200),
    _preset("iql", "iql", "pendulum-mixed", SMALL, 50_000, Score(-184.8, -209.5, -167.8, 206, CPU_25_17), -200),
    _preset("iql", "iql", "cartpole-mixed", SMALL, 20_000, Score(496.3, 493.0, 499.2, 85, CPU_25_17), 475, 7),
    _preset("td3bc", "td3", "pendulum-replay", PENDULUM_TD3BC, 50_000, Score(-147.6, -153.2, -142.0, 155, CPU_25_17), -200),
    _preset("td3bc", "td3", "pendulum-mixed", PENDULUM_TD3BC, 50_000, Score(-143.6, -148.7, -138.3, 178, CPU_25_17), -200),
    _preset("cql", "sac", "pendulum-mixed", PENDULUM_CQL, 30_000, Score(-147.5, -152.7, -141.4, 2355, CPU_25_17), -250),
    _preset("discretecql", "dqn", "cartpole-mixed", CARTPOLE_CQL, 50_000, Score(499.2, 497.7, 500.0, 23, CPU_25_17), 475, 7),
    _preset("dt", "dt", "cartpole-mixed", CARTPOLE_DT, 2_000, Score(499.8, 499.5, 500.0, 569, CPU_25_17), 450),
)

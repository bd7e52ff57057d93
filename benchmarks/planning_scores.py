"""Experiments with model predictive control: learned dynamics and the environment itself, two planners with as many sequences."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment

PENDULUM, EPISODES, SEEDS = "Pendulum-v1", 32, 4
CEM: dict[str, Any] = {"name": "cem", "candidates": 100, "iterations": 4}
SHOOTING: dict[str, Any] = {"name": "random_shooting", "candidates": 400}
"""As many sequences as ``CEM`` draws for a plan."""
SIMULATOR: dict[str, Any] = {"dynamics": "simulator", "rollout_length": 100}


def on_pendulum(name: str, settings: dict[str, Any], steps: int, threshold: float | None) -> Experiment:
    return Experiment(f"mpc-pendulum{name}", "make_mpc", PENDULUM, settings, steps, SEEDS, threshold, None, EPISODES)


PLANNING_SCORES = (
    on_pendulum("", {"planner": CEM}, 5_000, -200),
    on_pendulum("-random-shooting", {"planner": SHOOTING}, 5_000, None),
    on_pendulum("-simulator", {"planner": CEM, **SIMULATOR}, 100, -150),
    on_pendulum("-simulator-random-shooting", {"planner": SHOOTING, **SIMULATOR}, 100, None),
)

"""Experiments with model predictive control: learned dynamics and the environment itself, two planners with as many sequences."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment

SHOOTING: dict[str, Any] = {"name": "random_shooting", "candidates": 400}
"""As many sequences as the planner of the preset ``mpc-pendulum`` draws for a plan."""
LARGE_CEM: dict[str, Any] = {
    "name": "cem",
    "candidates": 300,
    "iterations": 6,
    "elites": 30,
    "deviation": 1.0,
    "smoothing": 0.2,
}
LARGE_SHOOTING: dict[str, Any] = {"name": "random_shooting", "candidates": 1_800}
SIMULATOR: dict[str, Any] = {"dynamics": "simulator", "rollout_length": 100, "gamma": 1.0}


def on_pendulum(name: str, settings: dict[str, Any], threshold: float | None, steps: int, episodes: int) -> Experiment:
    return Experiment(f"mpc-pendulum-{name}", "make_mpc", "Pendulum-v1", settings, steps, 4, threshold, None, episodes)


PLANNING_SCORES = (
    on_pendulum("random-shooting", {"planner": SHOOTING}, None, 5_000, 32),
    on_pendulum("simulator", {"planner": LARGE_CEM, **SIMULATOR}, -150, 100, 128),
    on_pendulum("simulator-random-shooting", {"planner": LARGE_SHOOTING, **SIMULATOR}, None, 100, 128),
)

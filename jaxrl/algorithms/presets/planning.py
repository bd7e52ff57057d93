"""Presets of algorithms that plan, with a score that was measured for them."""

from __future__ import annotations

from jaxrl.algorithms.presets.preset import Preset, Score
from jaxrl.algorithms.presets.settings import CPU_25_17

CEM = {"name": "cem", "candidates": 100, "iterations": 4}
MUZERO_CARTPOLE = {"replay_ratio": 32.0, "n_step": 20, "gamma": 0.997}

PLANNING = (
    Preset(
        "muzero-cartpole",
        "muzero",
        "CartPole-v1",
        MUZERO_CARTPOLE,
        50_000,
        4,
        Score(473.1, 422.4, 500.0, 745, CPU_25_17),
        475,
        3,
    ),
    Preset(
        "mpc-pendulum",
        "mpc",
        "Pendulum-v1",
        {"planner": CEM},
        5_000,
        4,
        Score(-147.5, -153.2, -141.1, 263, CPU_25_17),
        -200,
        run={"eval_episodes": 32, "eval_every": 25},
    ),
)

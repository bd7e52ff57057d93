"""Presets of algorithms that plan, with a score that was measured for them."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.presets.preset import Preset

MUZERO_CARTPOLE: dict[str, Any] = {"replay_ratio": 32.0, "n_step": 20, "gamma": 0.997, "search": "puct", "simulations": 25}

PLANNING = (Preset("muzero-cartpole", "muzero", "CartPole-v1", MUZERO_CARTPOLE, 100_000, 4, None, 475, 3),)

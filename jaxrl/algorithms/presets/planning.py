"""Presets of algorithms that plan, with a score that was measured for them."""

from __future__ import annotations

from jaxrl.algorithms.presets.preset import Preset

MUZERO_CARTPOLE = {"replay_ratio": 32.0, "n_step": 20, "gamma": 0.997}

PLANNING = (Preset("muzero-cartpole", "muzero", "CartPole-v1", MUZERO_CARTPOLE, 50_000, 4, None, 475, 3),)

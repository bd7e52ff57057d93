"""Variants of DQN, each with one switch added to its defaults or removed from them. Data only."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.minatar_scores import COMPARED_GAMES

CROSS_ENTROPY = {"learning_rate": 1e-3, "adam_eps": 1.5e-4}
"""A learning rate for C51's loss."""
QUANTILES = {"num_quantiles": 8, "huber_threshold": 10.0}
"""Eight quantiles for speed, and a threshold for returns of up to 100."""
SUMMED = {"learning_rate": 3e-3}
"""A learning rate for gradients summed over quantiles."""
CARTPOLE_RETURNS = {"head": {"name": "c51", "v_min": 0.0, "v_max": 100.0}}
"""C51 for the range of returns with a discount of 0.99."""


class Variant(NamedTuple):
    """DQN with one change."""

    label: str
    settings: dict[str, Any]
    """Settings that differ from ``make_dqn``'s defaults."""


SWITCHES = {
    "dueling": Variant("+ dueling", {"model": {"dueling": True}}),
    "munchausen": Variant("+ Munchausen", {"bootstrap": "munchausen"}),
    "prioritized": Variant("+ prioritised replay", {"replay": "prioritized"}),
    "apex": Variant("+ an ε per environment", {"epsilon_start": 0.4, "epsilon_end": 0.4, "exploration": "spread"}),
    "noisy": Variant("+ noisy layers", {"noise": "noisy", "epsilon_start": 0.0, "epsilon_end": 0.0}),
    "c51": Variant("+ C51", {**CARTPOLE_RETURNS, **CROSS_ENTROPY}),
    "hl-gauss": Variant("+ HL-Gauss", {"head": {"name": "hl_gauss", "v_min": 0.0, "v_max": 100.0}, **CROSS_ENTROPY}),
    "qr": Variant("+ QR", {"head": {"name": "qr", **QUANTILES}, **SUMMED}),
    "iqn": Variant("+ IQN", {"head": {"name": "iqn", **QUANTILES}, **SUMMED, "replay_ratio": 4}),
    "one-step": Variant("− n-step returns", {"n_step": 1, "learning_rate": 3e-3}),
    "single": Variant("− double", {"bootstrap": "greedy"}),
    "mnih": Variant("− both", {"n_step": 1, "bootstrap": "greedy"}),
}
"""NAME -> variant of the score ``dqn-cartpole-NAME``."""

PANELS: dict[str, dict[str, str]] = {
    "CartPole-v1": {
        "dqn-cartpole-long": "DQN: double, n = 5",
        **{f"dqn-cartpole-{name}": variant.label for name, variant in SWITCHES.items()},
        "rainbow-cartpole": "Rainbow",
        "pqn-cartpole": "PQN",
    },
    **{
        f"{game}-MinAtar": {
            f"dqn-minatar-{game.lower()}": "DQN: double, n = 5",
            f"rainbow-minatar-{game.lower()}": "Rainbow",
            f"pqn-minatar-{game.lower()}": "PQN",
        }
        for game in COMPARED_GAMES
    },
}
"""Panels of the figure that compares the scores: environment -> name of a score -> label."""

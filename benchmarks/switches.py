"""Variants of DQN, each with one switch added to its defaults or removed from them. Data only."""

from __future__ import annotations

from typing import Any, NamedTuple

CROSS_ENTROPY = {"learning_rate": 1e-3, "adam_eps": 1.5e-4}
"""A learning rate for C51's loss."""
QUANTILES = {"num_quantiles": 8, "huber_threshold": 10.0}
"""Eight quantiles for speed, and a threshold for returns of up to 100."""
SUMMED = {"learning_rate": 3e-3}
"""A learning rate for gradients summed over quantiles."""
CARTPOLE_RETURNS = {"head": {"name": "c51", "v_min": 0.0, "v_max": 100.0}}
"""C51 for the range of returns with a discount of 0.99."""
MINATAR_RETURNS = {"head": {"name": "c51", "v_min": 0.0, "v_max": 20.0}}
"""C51 for the range of returns with at most one reward in five steps."""

MINATAR_GAMES = {"Breakout": 10, "SpaceInvaders": 45}
"""DQN's training returns after 5M frames in Young & Tian 2019."""
MINATAR_ROWS: dict[str, Any] = {
    "model": {"encoder": "flat"},  # several times as many steps per second as convolutions
    "rollout_length": 16,
    "batch_size": 32,
    "replay_ratio": 8,  # one update per 4 steps
    "learning_starts": 5_000,
    "target_update_interval": 250,
    "learning_rate": 5e-4,
    "adam_eps": 1.5e-4,
}
MINATAR_EXPLORATION = {"epsilon_start": 1.0, "epsilon_end": 0.05, "exploration_steps": 100_000}
MINATAR = {
    "dqn": ("make_dqn", {**MINATAR_ROWS, **MINATAR_EXPLORATION}),
    "rainbow": ("make_rainbow", {**MINATAR_ROWS, **MINATAR_RETURNS}),
}
"""NAME -> builder and settings of the scores ``NAME-minatar-GAME``."""
MINATAR_CHANGES = {("rainbow", "Breakout"): {"noise": None, **MINATAR_EXPLORATION}}
"""(NAME, game) -> settings that differ.

With noisy layers, Rainbow stops exploring on Breakout: the returns of four seeds were constant after 400,000 to 1,600,000 steps,
at 6, 16, 24 and 26. On Space Invaders they help: without them the greedy return is 64 in place of 101.
"""


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
        for game in MINATAR_GAMES
    },
}
"""Panels of the figure that compares the scores: environment -> name of a score -> label."""

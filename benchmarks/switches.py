"""DQN's switches, one at a time: what is added to its defaults, and what is taken from them. Data only."""

from __future__ import annotations

from typing import Any, NamedTuple

CROSS_ENTROPY = {"learning_rate": 1e-3, "adam_eps": 1.5e-4}
"""A step size for the loss of C51."""
QUANTILES = {"num_quantiles": 8, "huber_threshold": 10.0, "learning_rate": 3e-3}
"""Eight for speed; a threshold that fits returns of up to 100; and a step size for gradients that are sums over quantiles."""
CARTPOLE_RETURNS = {"v_min": 0.0, "v_max": 100.0}
"""Discounted by 0.99, at most 100."""
MINATAR_RETURNS = {"v_min": 0.0, "v_max": 20.0}
"""At most those of a reward in five steps."""

MINATAR_GAMES = {"Breakout": 10, "SpaceInvaders": 45}
"""What DQN reaches after 5M frames: Young & Tian 2019, in training."""
MINATAR_ROWS: dict[str, Any] = {
    "model": {"encoder": "flat"},  # learns several times as many steps in a second as convolutions
    "rollout_length": 16,
    "batch_size": 32,
    "replay_ratio": 8,  # one update in 4 steps
    "learning_starts": 5_000,
    "target_update_interval": 250,
    "learning_rate": 5e-4,
    "adam_eps": 1.5e-4,
}
MINATAR = {
    "dqn": ("make_dqn", {**MINATAR_ROWS, "epsilon_end": 0.05, "exploration_steps": 100_000}),
    "rainbow": ("make_rainbow", {**MINATAR_ROWS, **MINATAR_RETURNS}),
}
"""Builder and settings of a score, ``NAME-minatar-GAME``."""


class Variant(NamedTuple):
    """DQN with one thing changed."""

    label: str
    settings: dict[str, Any]
    """What differs from ``make_dqn``'s defaults."""


SWITCHES = {
    "dueling": Variant("+ dueling", {"dueling": True}),
    "munchausen": Variant("+ Munchausen", {"munchausen": 0.9}),
    "prioritized": Variant("+ prioritised replay", {"prioritized": True}),
    "apex": Variant("+ an ε per environment", {"epsilon_start": 0.4, "epsilon_end": 0.4, "epsilon_exponent": 7.0}),
    "noisy": Variant("+ noisy layers", {"noisy": True, "epsilon_start": 0.0, "epsilon_end": 0.0}),
    "c51": Variant("+ C51", {"head": "c51", **CARTPOLE_RETURNS, **CROSS_ENTROPY}),
    "qr": Variant("+ QR", {"head": "qr", **QUANTILES}),
    "iqn": Variant("+ IQN", {"head": "iqn", **QUANTILES, "replay_ratio": 4}),
    "one-step": Variant("− n-step returns", {"n_step": 1, "learning_rate": 3e-3}),
    "single": Variant("− double", {"double": False}),
    "mnih": Variant("− both", {"n_step": 1, "double": False}),
}
"""Each name ends that of its score, ``dqn-cartpole-NAME``."""

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
"""The figure that compares them: environment -> name of a score -> label."""

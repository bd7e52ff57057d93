"""Learning rules: one file per algorithm, each with its config, loss, rule and builder; and the registry that lists them."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where an algorithm's builder and settings are, by name: its module is imported when it is asked for."""

    module: str
    builder: str
    config: str
    hyperparams: str
    help: str


ALGORITHMS = {
    "ppo": Entry(
        "jaxrl.algorithms.ppo",
        "make_ppo",
        "PPOConfig",
        "PPOHyperparams",
        "proximal policy optimisation; Discrete and Box actions",
    ),
    "dqn": Entry(
        "jaxrl.algorithms.dqn", "make_dqn", "DQNConfig", "DQNHyperparams", "deep Q-learning with uniform replay; Discrete actions"
    ),
}

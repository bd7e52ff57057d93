"""Learning rules: one file per algorithm, each with its config, loss, rule and builder; and the registry that lists them."""

from __future__ import annotations

import dataclasses
import importlib
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


def setting_names(algorithm: str) -> tuple[list[str], list[str]]:
    """The names of an algorithm's structural settings, and of its hyperparameters; without ``total_steps``, which a run sets."""
    entry = ALGORITHMS[algorithm]
    module = importlib.import_module(entry.module)
    structure = [field.name for field in dataclasses.fields(getattr(module, entry.config))]
    return structure, [name for name in getattr(module, entry.hyperparams)._fields if name != "total_steps"]

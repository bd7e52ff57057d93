"""Experiments on MinAtar's games after two million steps: DQN, Rainbow and PQN beside each other."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment
from jaxrl.algorithms.presets.settings import ASTERIX, PQN_MINATAR

COMPARED_GAMES: dict[str, float] = {"Breakout": 10, "SpaceInvaders": 45}
"""Games of the figure that compares variants -> DQN's training return after 5M frames in Young & Tian 2019."""
FURTHER_GAMES = ("Freeway", "Asterix")
"""Games on which PQN is measured without a threshold."""

DQN: dict[str, Any] = {
    "model": {"encoder": "flat"},  # several times as many steps per second as convolutions
    "rollout_length": 16,
    "batch_size": 32,
    "replay_ratio": 8,  # one update per 4 steps
    "learning_starts": 5_000,
    "target_update_interval": 250,
    "learning_rate": 5e-4,
    "adam_eps": 1.5e-4,
}
EXPLORATION = {"epsilon_start": 1.0, "epsilon_end": 0.05, "exploration_steps": 100_000}


def c51(v_max: float, num_atoms: int = 51) -> dict[str, Any]:
    return {"head": {"name": "c51", "num_atoms": num_atoms, "v_min": 0.0, "v_max": v_max}}


RAINBOW: dict[str, dict[str, Any]] = {
    "Breakout": DQN | c51(20.0) | {"noise": None} | EXPLORATION,
    "SpaceInvaders": DQN | c51(50.0, num_atoms=101),
}
"""Rainbow's settings for each game.

With noisy layers, Rainbow stops exploring on Breakout: the returns of four seeds were constant after 400,000 to 1,600,000 steps,
at 6, 16, 24 and 26. On Space Invaders they help: without them the greedy return was 64 in place of 101, with atoms up to 20.
Discounted returns of its policies there are up to 18, near the end of such atoms, and two greedy policies got stuck at 47 and 69.
"""


PQN_CHANGES: dict[str, dict[str, Any]] = {"Asterix": {"model": ASTERIX["model"]}}
"""Settings that differ for a game. An MLP does not learn Asterix; the network with convolutions, as for PPO, does."""


def on_minatar(name: str, builder: str, game: str, settings: dict[str, Any], threshold: float | None) -> Experiment:
    return Experiment(f"{name}-minatar-{game.lower()}", builder, f"{game}-MinAtar", settings, 2_000_000, 5, threshold)


MINATAR_SCORES = (
    *(on_minatar("dqn", "make_dqn", game, DQN | EXPLORATION, published) for game, published in COMPARED_GAMES.items()),
    *(on_minatar("rainbow", "make_rainbow", game, RAINBOW[game], published) for game, published in COMPARED_GAMES.items()),
    *(on_minatar("pqn", "make_pqn", game, PQN_MINATAR | PQN_CHANGES.get(game, {}), None) for game in FURTHER_GAMES),
)

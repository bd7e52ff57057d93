"""Experiments on MinAtar's games: DQN, Rainbow and PQN beside each other after two million steps, and PPO after ten million."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment
from jaxrl.algorithms.presets.settings import ASTERIX, MINATAR, PQN_MINATAR

COMPARED_GAMES: dict[str, float] = {"Breakout": 10, "SpaceInvaders": 45}
"""Games of the figure that compares variants -> DQN's training return after 5M frames in Young & Tian 2019."""
FURTHER_GAMES = ("Freeway", "Asterix", "Seaquest")
"""Games on which DQN and PQN are measured without a threshold."""

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


def c51(v_max: float) -> dict[str, Any]:
    return {"head": {"name": "c51", "v_min": 0.0, "v_max": v_max}}


RAINBOW: dict[str, dict[str, Any]] = {
    "Breakout": DQN | c51(20.0) | {"noise": None} | EXPLORATION,
    "SpaceInvaders": DQN | c51(40.0),
}
"""Rainbow's settings for each game.

With noisy layers, Rainbow stops exploring on Breakout: the returns of four seeds were constant after 400,000 to 1,600,000 steps,
at 6, 16, 24 and 26. On Space Invaders they help: with ε in their place, returns in training were 62 in place of 120. Discounted
returns of its policies there are up to 18, near the end of atoms up to 20, with which two greedy policies got stuck at 47 and 69.
With 5-step returns, as in DQN, one of five got stuck at 47, and returns in training were lower.
"""


CHANGES: dict[str, dict[str, Any]] = {"Asterix": {"model": ASTERIX["model"]}}
"""Settings that differ for a game. PQN with an MLP does not learn Asterix; with convolutions, as for PPO, it does."""
DQN_CHANGES: dict[str, dict[str, Any]] = {**CHANGES, "Freeway": {"n_step": 1}}
"""With 5-step returns on Freeway, returns in training of five seeds rose to 25 after 250,000 steps, and fell to 12 after two
million, where greedy policies had 9.4. After 600,000 steps, two other seeds had 17.1 with them, and 37.4 with 1-step returns."""


IDS = {"Seaquest": "gymnasium:minatar.gym:BaseEnv?game=seaquest"}
"""Games that are not gymnax's, since its Seaquest makes 320 steps in the time in which MinAtar's own makes 56,000."""


def on_minatar(
    name: str, game: str, settings: dict[str, Any], threshold: float | None = None, total_steps: int = 2_000_000
) -> Experiment:
    """Return the experiment of the algorithm called ``name`` on a game, with five seeds."""
    env = IDS.get(game, f"{game}-MinAtar")
    return Experiment(f"{name}-minatar-{game.lower()}", f"make_{name}", env, settings, total_steps, 5, threshold)


MINATAR_SCORES = (
    *(on_minatar("dqn", game, DQN | EXPLORATION, published) for game, published in COMPARED_GAMES.items()),
    *(on_minatar("rainbow", game, RAINBOW[game], published) for game, published in COMPARED_GAMES.items()),
    *(on_minatar("dqn", game, DQN | EXPLORATION | DQN_CHANGES.get(game, {})) for game in FURTHER_GAMES),
    *(on_minatar("pqn", game, PQN_MINATAR | CHANGES.get(game, {})) for game in FURTHER_GAMES),
    on_minatar("ppo", "Seaquest", MINATAR, total_steps=10_000_000),
)

"""Presets of games of two players, which are learned by self-play, with a score that was measured for them."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.presets.preset import Preset, Score
from jaxrl.algorithms.presets.settings import CPU_25_17

TIC_TAC_TOE, CONNECT_FOUR = "jaxrl:TicTacToe", "jaxrl:ConnectFour"
BOARD: dict[str, Any] = {"encoder": "flat", "hidden_sizes": (256, 256)}
ALPHAZERO: dict[str, Any] = {"simulations": 16, "model": BOARD, "replay_ratio": 8.0}
PPO: dict[str, Any] = {
    "num_envs": 128,
    "rollout_length": 32,
    "gamma": 1.0,
    "ent_coef": 0.05,
    "learning_rate": 1e-3,
    "model": BOARD,
}
PQN: dict[str, Any] = {"num_envs": 128, "rollout_length": 32, "gamma": 1.0, "q_lambda": 0.65, "model": BOARD}


def self_play(name: str, env: str, settings: dict[str, Any], steps: int, seeds: int, score: Score) -> Preset:
    """Return a preset that must not lose more than 2 % of the games against random play."""
    return Preset(name, name.partition("-")[0], env, settings, steps, seeds, score, 0.98, against="random")


GAMES = (self_play("alphazero-tictactoe", TIC_TAC_TOE, ALPHAZERO, 150_000, 4, Score(1.0, 1.0, 1.0, 125, CPU_25_17)),)

"""Experiments with games of two players. A score is a share of the points, or of the games that are not lost."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment

TIC_TAC_TOE, CONNECT_FOUR = "jaxrl:TicTacToe", "jaxrl:ConnectFour"
GAMES = 512
"""Games per seed, half of them from each side."""
BOARD: dict[str, Any] = {"encoder": "flat", "hidden_sizes": (256, 256)}
PPO: dict[str, Any] = {
    "num_envs": 128,
    "rollout_length": 32,
    "gamma": 1.0,
    "ent_coef": 0.05,
    "learning_rate": 1e-3,
    "model": BOARD,
}
PQN: dict[str, Any] = {"num_envs": 128, "rollout_length": 32, "gamma": 1.0, "q_lambda": 0.65, "model": BOARD}


def self_play(name: str, builder: str, game: str, settings: dict[str, Any], steps: int, seeds: int) -> Experiment:
    """Return the experiment of an agent against random play, which must not win more than 2 % of the games, and one-ply play."""
    more = {"one_ply": 0.6}
    return Experiment(
        name, builder, game, settings, steps, seeds, 0.98, None, GAMES, against="random", draw_points=1.0, further_opponents=more
    )


GAME_SCORES = (
    self_play("ppo-tictactoe", "make_ppo", TIC_TAC_TOE, PPO, 3_000_000, 4),
    self_play("pqn-tictactoe", "make_pqn", TIC_TAC_TOE, PQN, 3_000_000, 4),
    self_play("ppo-connectfour", "make_ppo", CONNECT_FOUR, PPO, 4_000_000, 2),
    self_play("pqn-connectfour", "make_pqn", CONNECT_FOUR, PQN, 4_000_000, 2),
    self_play(
        "alphazero-tictactoe",
        "make_alphazero",
        TIC_TAC_TOE,
        {"simulations": 16, "model": BOARD, "replay_ratio": 8.0},
        150_000,
        4,
    ),
)

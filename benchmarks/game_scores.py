"""Experiments with games of two players. A score is the share of the games that are not lost, or of the points."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment
from jaxrl.algorithms.presets.games import CONNECT_FOUR, PPO, PQN, TIC_TAC_TOE

GAMES = 512
"""Games per seed, half of them from each side."""
ONE_PLY = {"one_ply": 0.6}
"""Required share of the points against one-ply play."""


def self_play(name: str, builder: str, game: str, settings: dict[str, Any], steps: int, seeds: int) -> Experiment:
    """Return the experiment of an agent against random play, which must not win more than 2 % of the games, and one-ply play."""
    measured = Experiment(name, builder, game, settings, steps, seeds, 0.98, None, GAMES, against="random", draw_points=1.0)
    return measured._replace(further_opponents=ONE_PLY)


PPO_CONNECT_FOUR = PPO | {"ent_coef": 0.15, "anneal": True, "num_minibatches": 8}
"""With less entropy the policies meet too few positions: after 3M steps, 6 % of the games against random play were lost with 0.01
and 4 % with 0.05."""

GAME_SCORES = (
    self_play("ppo-tictactoe", "make_ppo", TIC_TAC_TOE, PPO, 3_000_000, 4),
    self_play("pqn-tictactoe", "make_pqn", TIC_TAC_TOE, PQN, 3_000_000, 4),
    self_play("ppo-connectfour", "make_ppo", CONNECT_FOUR, PPO_CONNECT_FOUR, 4_000_000, 2),
    self_play("pqn-connectfour", "make_pqn", CONNECT_FOUR, PQN, 4_000_000, 2),
)

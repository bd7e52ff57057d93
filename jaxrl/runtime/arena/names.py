"""Names of the players that need no training. Does not import jax."""

from __future__ import annotations

RANDOM = "random"
LOOK_AHEAD = {"one_ply": 1, "two_ply": 2}
"""Name -> moves that the player looks ahead."""
MCTS = "mcts:"
"""Prefix of the name of a tree search without a network; the number of its simulations follows, as in ``mcts:100``."""
UNTRAINED = (RANDOM, *LOOK_AHEAD, f"{MCTS}100")
"""Names as they are shown; any number of simulations may follow ``mcts:``."""


def is_untrained(player: str) -> bool:
    return player == RANDOM or player in LOOK_AHEAD or player.startswith(MCTS)

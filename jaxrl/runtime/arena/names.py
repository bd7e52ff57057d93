"""Names of the players that need no training. Does not import jax."""

from __future__ import annotations

RANDOM = "random"
LOOK_AHEAD = {"one_ply": 1, "two_ply": 2}
"""Name -> moves that the player looks ahead."""
UNTRAINED = (RANDOM, *LOOK_AHEAD)

"""Entries of Dict observations whose names have a meaning: an agent's number, a state that only critics see, the player to move.

Like ``jaxrl.spaces.action_masks``, this module does not import jax.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import Array, PyTree

AGENT_KEY = "agent_id"
"""Entry with the number of the agent, Discrete(A)."""
PRIVILEGED_KEY = "privileged_state"
"""Entry that policies never see: the state of all agents, or of a simulator. Critics see it, in addition to the rest, if their
network is asked to (``critic="privileged"``)."""
PLAYER_KEY = "player"
"""Entry with the player whose move it is, Discrete(2), in games of two players (``Env.players``). Networks do not see it."""
RESERVED = (MASK_KEY, PRIVILEGED_KEY, PLAYER_KEY)
"""Entries that a policy's network does not encode."""


def entries_of(space: spaces.Space) -> dict[str, spaces.Space]:
    """Return the entries of a Dict, to which others can be added; another space becomes the entry ``observation``."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {OBSERVATION: space}


def as_entries(obs: PyTree) -> dict[str, PyTree]:
    """Return the entries of an observation of such a space."""
    return obs if isinstance(obs, dict) else {OBSERVATION: obs}


def has_privileged_state(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Dict) and PRIVILEGED_KEY in space.spaces


def check_privileged(space: spaces.Space, setting: str) -> None:
    """Raise ValueError unless the observations have a privileged state, as a network setting needs."""
    if not has_privileged_state(space):
        raise ValueError(
            f"{setting} needs observations that are a Dict with {PRIVILEGED_KEY!r}, and observation_space is {space}: leave it "
            "out, or add the state that only critics may see under that key"
        )


def players_of(space: spaces.Space) -> int:
    """Return the number of players of a game with such observations, 2; 1 if they do not say whose move it is."""
    return 2 if isinstance(space, spaces.Dict) and PLAYER_KEY in space.spaces else 1


def player_sign(obs: PyTree) -> Array | float:
    """Return 1 for observations of player 0 and −1 for those of player 1, [...]; 1 if there is one player."""
    return 1 - 2 * obs[PLAYER_KEY] if isinstance(obs, dict) and PLAYER_KEY in obs else 1.0


def turn_sign(obs: PyTree, next_obs: PyTree) -> Array | float:
    """Return 1 where the same player moves again, and −1 where it is the other's move, [...]; 1 if there is one player.

    What a player gains from then on is this times what the next player gains, since rewards are those of the player that moved
    and the other gets their opposite.
    """
    return player_sign(obs) * player_sign(next_obs)


def byte_scale(space: spaces.Box, dtype: Any) -> float:
    """Return the number by which networks divide observations: for uint8 the highest bound, 255 for images; else 1."""
    return max(1.0, float(space.high.max())) if dtype == np.uint8 else 1.0


def entries_seen(space: spaces.Dict | spaces.Tuple, hidden: set[str]) -> list[tuple[Any, spaces.Space]]:
    """Return the entries of a space whose names are not in ``hidden``."""
    entries: Any = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
    return [(name, part) for name, part in entries if name not in hidden]

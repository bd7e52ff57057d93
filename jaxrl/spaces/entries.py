"""Entries of Dict observations with a meaning of their names: the agent's number, and the state that only critics see.

Like ``jaxrl.spaces.action_masks``, this module does not import jax.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import PyTree

AGENT_KEY = "agent_id"
"""Entry with the number of the agent, Discrete(A)."""
PRIVILEGED_KEY = "privileged_state"
"""Entry that policies never see: the state of all agents, or of a simulator. Critics see it, in addition to the rest, if their
network is asked to (``critic="privileged"``)."""


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


def entries_seen(space: spaces.Dict | spaces.Tuple, hidden: set[str]) -> list[tuple[Any, spaces.Space]]:
    """Return the entries of a space whose names are not in ``hidden``."""
    entries: Any = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
    return [(name, part) for name, part in entries if name not in hidden]

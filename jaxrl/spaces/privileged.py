"""The state that only critics see."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

PRIVILEGED_KEY = "privileged_state"
"""Entry of a Dict observation that policies never see: the state of all agents, or of a simulator. Critics see it, in addition to
the rest, if their network is asked to (``critic="privileged"``)."""


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

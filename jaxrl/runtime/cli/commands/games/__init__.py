"""Commands for games of two players."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.runtime.arena.names import is_untrained


def game_of(players: Sequence[str], env: str | None) -> str:
    """Return the id of the game: ``env``, or that of the first run among the players."""
    from jaxrl.runtime.logs.run_folder import read_config

    runs = [player for player in players if not is_untrained(player)]
    if env is None and not runs:
        raise ValueError(f"{' and '.join(players)} can play any game: add --env jaxrl:ConnectFour")
    return str(read_config(runs[0])["agent"]["env"]) if env is None else env

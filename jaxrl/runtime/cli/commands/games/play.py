"""``jaxrl play PLAYER``: play a board game against a trained policy in the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jaxrl.runtime.arena.names import is_untrained
from jaxrl.runtime.cli.commands.games import game_of
from jaxrl.runtime.cli.flags import Flag, Trust, read_flags, shown_as
from jaxrl.settings.validation import check_seed

if TYPE_CHECKING:
    from jaxrl.runtime.arena.match import Shown

HELP = """\
Play a board game against the policy of a run, or against random, one_ply, two_ply or mcts:100 with --env.

Your stones are X. Type the number of a move and Enter; "undo" takes your last move back, "quit" or Ctrl-D ends the game. In
Connect Four a move is a column; in Tic-tac-toe it is a square, 0 to 8 row by row.

try:
  jaxrl play runs/alphazero-c4
  jaxrl play runs/alphazero-c4 --second        it begins
  jaxrl play mcts:500 --env jaxrl:ConnectFour
"""

SAID = {1: "You win.", -1: "You lose.", 0: "A draw.", None: "Ended."}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """Options of ``jaxrl play``."""

    player: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLAYER")]
    """Folder of a run, or name of a player that needs no training."""
    env: Annotated[str | None, shown_as("ID", "that of the run")] = None
    """The game."""
    second: Flag = False
    """Let it begin."""
    network_alone: Flag = False
    """Play AlphaZero by its network, without search."""
    which: Literal["best", "last"] = "last"
    """Policy of the run's last checkpoint. "best" is that of the last evaluation, as in all games."""
    seed: int = 0
    """Seed of players that draw."""
    trust: Trust = ()
    """Package or module that the run may import and execute. Can be repeated."""


def main(args: Sequence[str]) -> int:
    """Play one game."""
    options = read_flags(PlayOptions, args or ["--help"], prog="jaxrl play", description=HELP)
    env_id = game_of([options.player], options.env)
    check_seed("seed", options.seed)
    import jax

    from jaxrl.runtime.arena.arena import as_game
    from jaxrl.runtime.arena.entrants import entrant_of, load_player
    from jaxrl.runtime.arena.match import check_board, play_match
    from jaxrl.runtime.cli.user_code import import_env_module
    from jaxrl.runtime.system.devices import enable_compilation_cache

    import_env_module(env_id)
    env = as_game(env_id)
    check_board(env)
    enable_compilation_cache()
    player: Any = options.player
    if not is_untrained(player):
        how: dict[str, Any] = {"network_alone": options.network_alone, "which": options.which, "trust": options.trust}
        player = load_player(env, player, **how)
    entrant = entrant_of(env, options.player, player)
    print(SAID[play_match(env, entrant, jax.random.key(options.seed), ask, show, second=options.second)])
    return 0


def show(position: Shown) -> None:
    said = "" if position.move is None else f"It plays {position.move}.\n"
    print(f"\n{said}{position.board}\n", flush=True)


def ask(allowed: list[int]) -> int | None:
    """Ask for a move until it is allowed; None takes the last one back. Raise EOFError to end the game."""
    while True:
        typed = input("your move: ").strip().lower()
        if typed in ("quit", "q"):
            raise EOFError
        if typed in ("undo", "u"):
            return None
        if typed.isdecimal() and int(typed) in allowed:
            return int(typed)
        print(f"Type one of {', '.join(map(str, allowed))}, undo or quit.")

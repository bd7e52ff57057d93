"""``jaxrl arena PLAYER PLAYER …``: play trained policies against each other, and rate them."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxrl.runtime.arena.names import UNTRAINED, is_untrained
from jaxrl.runtime.cli.commands.games import game_of
from jaxrl.runtime.cli.flags import Count, Flag, Trust, read_flags, shown_as
from jaxrl.runtime.plots.style import FORMATS
from jaxrl.runtime.system.disk import absolute, at_home, check_writable

if TYPE_CHECKING:
    from jaxrl.runtime.arena.arena import Arena

HELP = f"""\
Play all pairs of players against each other, from both sides and from the same openings, and print wins, draws, losses and Elo
ratings with 95 % bootstrap intervals over games.

A player is the folder of a run, whose last policy plays greedily, or {", ".join(UNTRAINED)}. one_ply takes a move that
wins at once, two_ply also makes no move after which the other wins at once, and mcts:100 searches with 100 simulations, and
random games in place of a network. The rating of random play is 0, or without it that of the
first player. Each game begins with random moves, so that policies do not repeat one game.

try:
  jaxrl arena runs/ppo-ConnectFour runs/pqn-ConnectFour random two_ply
  jaxrl arena runs/a runs/b --games 1000 --out ratings.png
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArenaOptions:
    """Options of ``jaxrl arena``."""

    players: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PLAYER PLAYER …", help_behavior_hint="")]
    """Folders of runs, or names of players that need no training."""
    env: Annotated[str | None, shown_as("ID", "that of the first run")] = None
    """The game."""
    games: Count = 256
    """Games of each pair; an even number."""
    network_alone: Flag = False
    """Play policies of AlphaZero by their networks, without search."""
    opening_moves: Count = 2
    """Random moves with which a game begins."""
    seed: int = 0
    """Seed of openings and of players that draw."""
    out: Annotated[str | None, shown_as("FILE", "none")] = None
    """Draw the ratings and the points of all pairs: .png, .pdf or .svg."""
    json: Annotated[str | None, shown_as("FILE")] = None
    """Write all results to this file; '-' is the standard output."""
    trust: Trust = ()
    """Package or module that the runs may import and execute. Can be repeated."""


def main(args: Sequence[str]) -> int:
    """Play the games, and report the results."""
    options = read_flags(ArenaOptions, args or ["--help"], prog="jaxrl arena", description=HELP)
    if options.out is not None and at_home(options.out).suffix[1:].lower() not in FORMATS:
        raise ValueError(f"--out {options.out!r} must end in one of {', '.join(f'.{kind}' for kind in FORMATS)}")
    for name in ("out", "json"):
        if (file := getattr(options, name)) not in (None, "-"):
            check_writable(file, name, make_folder=True)
    if len(set(options.players)) < 2:
        raise ValueError("name at least two different players: jaxrl arena RUN random")
    env = game_of(options.players, options.env)
    from jaxrl.runtime.arena.arena import arena, as_game
    from jaxrl.runtime.arena.entrants import load_player
    from jaxrl.runtime.cli.user_code import import_env_module
    from jaxrl.runtime.console.progress import spinner
    from jaxrl.runtime.system.devices import enable_compilation_cache

    import_env_module(env)
    enable_compilation_cache()
    with spinner("jaxrl arena") as say:
        say("loading")
        game = as_game(env)
        how: dict[str, Any] = {"network_alone": options.network_alone, "trust": options.trust}
        players = {
            name: player if is_untrained(player) else load_player(game, player, **how)
            for name, player in named(options.players).items()
        }
        say(f"{len(players) * (len(players) - 1) // 2 * options.games} games of {env}")
        played = arena(game, players, games=options.games, seed=options.seed, opening_moves=options.opening_moves)
    report(played, env, options)
    return 0


def named(players: Sequence[str]) -> dict[str, str]:
    """Return name -> player; that of a run is the name of its folder, or its path where several folders have that name."""
    short = [os.path.basename(os.path.normpath(player)) for player in players]
    return {name if short.count(name) == 1 else player: player for name, player in zip(short, players, strict=True)}


def report(played: Arena, env: str, options: ArenaOptions) -> None:
    """Print the tables, and write the files that were asked for."""
    from jaxrl.runtime.console.tables import show_table

    if options.out is not None:
        from jaxrl.runtime.arena.picture import draw_arena

        path = at_home(options.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_arena(played, path, title=env)
    if options.json is not None:
        found: dict[str, Any] = {name: getattr(x, "tolist", lambda x=x: x)() for name, x in played._asdict().items()}
        text = json.dumps({"env": env, "games": options.games, "opening_moves": options.opening_moves, **found}, indent=1) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
            return
        absolute(options.json).write_text(text, encoding="utf-8")
    print(f"{env}: {options.games} games of each pair, half of them with the sides exchanged\n")
    order = played.ratings.argsort()[::-1]
    rows = []
    for i in order:
        low, high = played.intervals[i]
        results = [f"{played.wins[i, j]}–{played.draws[i, j]}–{played.losses[i, j]}" if i != j else "" for j in order]
        rows.append([played.names[i], f"{played.ratings[i]:.0f} [{low:.0f}, {high:.0f}]", *results])
    show_table(("player", "Elo [95 %]", *(f"against {played.names[j]}" for j in order)), rows)
    print("\nwins–draws–losses of the row's player")
    if options.out is not None:
        print(f"drawn to {path}")

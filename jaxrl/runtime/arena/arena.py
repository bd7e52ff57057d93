"""``jaxrl.arena``: play all pairs of policies against each other and rate them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.envs import make_env
from jaxrl.runtime.arena.entrants import entrant_of
from jaxrl.runtime.arena.games import play_games, schedule
from jaxrl.runtime.arena.names import RANDOM
from jaxrl.runtime.arena.ratings import intervals, ratings, tables
from jaxrl.settings.aliases import unknown
from jaxrl.settings.validation import check_count, check_seed
from jaxrl.types import Env, EnvLike


class Arena(NamedTuple):
    """Results of all pairs of entrants; NumPy arrays [P, P] with those of the row's entrant against the column's."""

    names: list[str]
    wins: np.ndarray
    draws: np.ndarray
    losses: np.ndarray
    ratings: np.ndarray
    """f64[P]: Elo points; 0 for random play under any name, or without it for the first entrant."""
    intervals: np.ndarray
    """f64[P, 2]: 95 % bootstrap intervals of the ratings, over games."""

    def score(self, name: str, other: str) -> float:
        """Return the share of points of an entrant against another: wins, and half of the draws. Raise ValueError for an unknown
        name."""
        for each in (name, other):
            if each not in self.names:
                raise unknown("player", each, self.names)
        i, j = self.names.index(name), self.names.index(other)
        return float((self.wins[i, j] + self.draws[i, j] / 2) / (self.wins + self.draws + self.losses)[i, j])


def arena(
    env: EnvLike, players: Mapping[str, Any] | Sequence[str], *, games: int = 256, seed: int = 0, opening_moves: int = 2
) -> Arena:
    """Play all pairs of players against each other, and rate them.

    Each pair plays ``games`` games in one program, half of them with the sides exchanged, from the same openings.

    Args:
      env: a game of two players (``Env.players``), or its id.
      players: names -> ``"random"``, ``"one_ply"`` (wins at once if it can), ``"two_ply"`` (and does not let the other do so),
        ``"mcts:100"`` (a tree search with 100 simulations and random games in place of a network), the folder of a run, a policy
        of ``load_policy``, or a pair of an agent and a state of one seed; or a sequence of texts. AlphaZero searches, except as a
        policy that was loaded without ``search``.
      games: of each pair; an even number.
      seed: of the openings, and of players that draw.
      opening_moves: number of random moves with which a game begins, so that policies without chance do not repeat a game.

    Raises:
      TypeError, ValueError: the environment is not a pure game of two players, a player is unknown or does not fit it, or
        ``games`` is odd.
      FileNotFoundError: the run does not exist.
    """
    game = as_game(env)
    if isinstance(players, str):
        raise TypeError(f"players={players!r} must be names -> players, or a sequence of players")
    named = dict(players) if isinstance(players, Mapping) else {str(player): player for player in players}
    if len(named) < 2:
        raise ValueError(f"players={[*named]} must be at least two, with different names")
    if check_count("games", games) % 2:
        raise ValueError(f"games={games} must be even: half of them are with the sides exchanged")
    check_count("opening_moves", opening_moves, at_least=0)
    key = jax.random.key(check_seed("seed", seed))
    entrants = [entrant_of(game, name, player) for name, player in named.items()]
    plan = schedule(len(entrants), games)
    program = jax.jit(partial(play_games, game, entrants, games=plan, opening_moves=opening_moves))
    played = program([entrant.policy for entrant in entrants], key=key)
    at_random = [isinstance(player, str) and player == RANDOM for player in named.values()]
    anchor = at_random.index(True) if any(at_random) else 0
    return results_of([*named], np.asarray(played.episodic_return), plan.first, plan.second, anchor)


def as_game(env: EnvLike) -> Env:
    """Return the game of an id, or the game itself. Raise ValueError if it is not a game of two players in JAX."""
    game = make_env(env) if isinstance(env, str) else env
    if not isinstance(game, Env) or game.players != 2:
        raise ValueError(f"{getattr(game, 'name', game)} is not a game of two players written in JAX (Env.players)")
    return game


def results_of(names: list[str], returns: np.ndarray, first: np.ndarray, second: np.ndarray, anchor: int = 0) -> Arena:
    """Return the tables and ratings of games, given the returns of player 0. The rating of the entrant ``anchor`` is 0."""

    def table(of_first: np.ndarray, of_second: np.ndarray) -> np.ndarray:
        counted = np.zeros((len(names), len(names)), int)
        np.add.at(counted, (first, second), of_first)
        np.add.at(counted, (second, first), of_second)
        return counted

    wins, draws = table(returns > 0, returns < 0), table(returns == 0, returns == 0)
    points = (np.sign(returns) + 1) / 2
    rated = ratings(*tables(points, first, second, len(names)), anchor)
    return Arena(names, wins, draws, wins.T.copy(), rated, intervals(points, first, second, len(names), anchor))

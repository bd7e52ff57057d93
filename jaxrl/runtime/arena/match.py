"""A game between a person and an entrant, move by move, and boards as text."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.rollout.collect import advance, init_actor
from jaxrl.runtime.arena.entrants import Entrant
from jaxrl.runtime.arena.games import CarriesOnly
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import PLAYER_KEY
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import Env, Key

YOU, OTHER, EMPTY = "X", "O", "·"
"""Stones on a board that is shown."""

Ask = Callable[[list[int]], int | None]
"""Allowed moves -> the person's move; None to take the last one back."""


class Shown(NamedTuple):
    """A position, for the person."""

    board: str
    move: int | None
    """The entrant's last move."""


def check_board(env: Env) -> None:
    """Raise ValueError unless a game has a board of stones that can be shown as text."""
    space = env.observation_space
    board = space.spaces.get(OBSERVATION) if isinstance(space, spaces.Dict) else None
    if not isinstance(board, spaces.Box) or len(board.shape) != 3 or board.shape[2] != 2:
        raise ValueError(f"{env.name} cannot be shown as text: its {OBSERVATION} is {board}, not a board f32[rows, columns, 2]")


def board_text(obs: Any, mine: bool) -> str:
    """Return a board as text, with the numbers of the columns below.

    Args:
      obs: an observation, of the player to move.
      mine: the person is to move.
    """
    board = np.asarray(obs[OBSERVATION], bool)
    own, other = (YOU, OTHER) if mine else (OTHER, YOU)
    rows = [" ".join(own if a else other if b else EMPTY for a, b in row) for row in board]
    return "\n".join([*rows, " ".join(str(column % 10) for column in range(board.shape[1]))])


def play_match(env: Env, entrant: Entrant, key: Key, ask: Ask, show: Callable[[Shown], None], *, second: bool) -> int | None:
    """Play one game; return 1 if the person wins, −1 if the entrant does, 0 for a draw, None if the person stops (EOFError).

    Args:
      show: called with the position before each move of the person, and at the end.
      second: the entrant is player 0.
    """
    game, mine, env_params = jnp.zeros(1, jnp.int32), int(second), env.params
    algorithm: Any = CarriesOnly(entrant.initial_carry)

    @jax.jit
    def respond(policy: Any, actor: Any, key: Key) -> Any:
        return entrant.act(policy, actor.carry, actor.input, actor.env_state, game, key)

    @jax.jit
    def move(actor: Any, carry: Any, action: Any, key: Key) -> Any:
        return advance(env, actor, carry, action, env_params, game, *jax.random.split(key))

    actor, last, past = init_actor(algorithm, env, key, game, env_params), None, list[Any]()
    for number in itertools.count():
        obs = jax.tree.map(lambda x: np.asarray(x)[0], actor.input.obs)
        turn = int(obs[PLAYER_KEY]) == mine
        act_key, step_key = jax.random.split(jax.random.fold_in(key, number))
        carry, action = respond(entrant.policy, actor, act_key)
        if turn:
            show(Shown(board_text(obs, True), last))
            try:
                chosen = ask(np.flatnonzero(obs[MASK_KEY]).tolist())
            except EOFError:
                return None
            if chosen is None:
                actor, last = past.pop() if past else (actor, last)
                continue
            past.append((actor, last))
            action = jnp.array([chosen], jnp.int32)
        else:
            last = int(action[0])
        actor, outcome = move(actor, carry, action, step_key)
        if bool(outcome.done[0]):
            reached = jax.tree.map(lambda x: np.asarray(x)[0], actor.input.obs)
            show(Shown(board_text(reached, int(reached[PLAYER_KEY]) == mine), None if turn else last))
            return int(np.sign(outcome.reward[0])) * (1 if turn else -1)
    raise AssertionError  # the loop has no end

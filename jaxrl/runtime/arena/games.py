"""Games of all pairs of entrants in one program."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.rollout.autoreset import no_episode
from jaxrl.rollout.collect import advance, init_actor
from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.arena.entrants import Entrant, random_action
from jaxrl.spaces.entries import PLAYER_KEY
from jaxrl.types import Array, Env, Key, Policy, PyTree, StepInput


class Schedule(NamedTuple):
    """Which entrants play each game: i32[games], NumPy arrays."""

    first: np.ndarray
    """The entrant that is player 0"""
    second: np.ndarray
    opening: np.ndarray
    """Number of the game's opening: games with equal numbers begin with the same moves."""


class CarriesOnly(NamedTuple):
    """The part of an algorithm that ``init_actor`` needs."""

    initial_carry: Any


def schedule(entrants: int, games: int) -> Schedule:
    """Return the games of all pairs: ``games`` for each, half of them with the sides exchanged, from the same openings."""
    pairs = [(i, j) for i, j in itertools.combinations(range(entrants), 2)]
    rows = [
        (*(pair if side == 0 else pair[::-1]), opening) for pair in pairs for side in range(2) for opening in range(games // 2)
    ]
    return Schedule(*np.array(rows, np.int32).T)


def play_games(
    env: Env, entrants: list[Entrant], policies: list[Policy], games: Schedule, key: Key, opening_moves: int
) -> Evaluation:
    """Play all games to their ends; ``episodic_return`` is player 0's.

    Moves of an opening are random, and depend on (key, number of the opening) alone.

    Args:
      policies: those of the entrants, which are arguments of the compiled program.
    """
    first, second, opening = (jnp.asarray(x) for x in games)
    lanes = [np.flatnonzero((games.first == i) | (games.second == i)) for i in range(len(entrants))]
    reset_key, key = jax.random.split(key)

    def initial_carry(batch_size: int) -> Any:
        return tuple(entrant.initial_carry(len(own)) for entrant, own in zip(entrants, lanes, strict=True))

    def moves(carry: Any, inputs: StepInput, env_state: PyTree, time: Array, key: Key) -> tuple[Any, Array]:
        """Return the action of the entrant to move in each game. Each entrant follows all its games."""
        mover = jnp.where(inputs.obs[PLAYER_KEY] == 0, first, second)
        open_key, key = jax.random.split(key)
        action, after = random_action(env, inputs, opening, open_key), list[PyTree]()
        for i, (entrant, policy, own) in enumerate(zip(entrants, policies, lanes, strict=True)):
            seen, state = jax.tree.map(lambda x, own=own: x[own], (inputs, env_state))
            then, chosen = entrant.act(policy, carry[i], seen, state, jnp.asarray(own), jax.random.fold_in(key, i))
            decides = (mover[own] == i) & (time >= opening_moves)
            action = action.at[own].set(jnp.where(decides, chosen, action[own]))
            after.append(then)
        return tuple(after), action

    def goes_on(at: Any) -> Array:
        return ~at[1].finished.all()

    def row(at: Any) -> Any:
        actor, result, time = at
        act_key, step_key, renew_key = jax.random.split(jax.random.fold_in(key, time), 3)
        carry, action = moves(actor.carry, actor.input, actor.env_state, time, act_key)
        actor, outcome = advance(env, actor, carry, action, env.params, opening, step_key, renew_key)
        return actor, result.after(outcome), time + 1

    actor = init_actor(CarriesOnly(initial_carry), env, reset_key, opening, env.params)  # type: ignore[arg-type]
    nothing = Evaluation(*no_episode(len(first), jnp), jnp.zeros(len(first), bool))
    return jax.lax.while_loop(goes_on, row, (actor, nothing, jnp.zeros((), jnp.int32)))[1]

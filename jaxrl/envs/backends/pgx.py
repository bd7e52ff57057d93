"""Games of pgx, of one or two players, as pure ``Env``s."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.ids import check_name, check_options
from jaxrl.settings.packages import import_package
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import PLAYER_KEY
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

MORE_PLAYERS = {"bridge_bidding": 4, "sparrow_mahjong": 3}
"""Games of more than two players, which are not supported."""


def list_names() -> list[str]:
    pgx = import_package("pgx", "the backend pgx", extra="pgx")
    return [name for name in pgx.available_envs() if name not in MORE_PLAYERS]


def make(name: str, options: dict[str, Any]) -> Env:
    """Make a game of pgx (Koyamada et al. 2023). It has no options.

    Returns:
      An Env whose observation is a Dict: ``observation`` f32, from the side of the player to move, ``action_mask`` and, in games
      of two players, ``player``. Which player begins is random in pgx. A reward is that of the player who moved. A forbidden move
      ends the game and costs 1. pgx cannot draw pictures other than SVG files, so ``jaxrl record`` cannot show it.

    Raises:
      ValueError: the game does not exist, has more than two players, or an option is given.
    """
    if name in MORE_PLAYERS:
        raise ValueError(f"pgx:{name} has {MORE_PLAYERS[name]} players: games have one or two")
    check_name("pgx", name, list_names())
    check_options(f"pgx:{name}", options, {})
    game = import_package("pgx", "the backend pgx", extra="pgx").make(name)
    two = game.num_players == 2

    def observe(state: Any) -> PyTree:
        obs = {OBSERVATION: state.observation.astype(jnp.float32), MASK_KEY: state.legal_action_mask.astype(jnp.int8)}
        return {**obs, PLAYER_KEY: state.current_player.astype(jnp.int32)} if two else obs

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state = game.init(jax.random.key_data(key))
        return state, observe(state)

    def step(key: Key, env_state: Any, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        state = game.step(env_state, action, jax.random.key_data(key))
        reward = state.rewards[env_state.current_player] if two else state.rewards[0]
        terminated, truncated = jnp.asarray(state.terminated, bool), jnp.asarray(state.truncated, bool)
        return state, TimeStep(observe(state), reward.astype(jnp.float32), terminated, truncated & ~terminated)

    seen = jax.eval_shape(game.init, jax.ShapeDtypeStruct((2,), jnp.uint32)).observation
    bound = 1.0 if seen.dtype == np.bool_ else np.inf
    entries: dict[str, spaces.Space] = {
        OBSERVATION: spaces.Box(0.0 if bound == 1.0 else -bound, bound, seen.shape, np.float32),
        MASK_KEY: spaces.MultiBinary(int(game.num_actions)),
    }
    if two:
        entries[PLAYER_KEY] = spaces.Discrete(2)
    return Env(reset, step, spaces.Dict(entries), spaces.Discrete(int(game.num_actions)), players=2 if two else 1)

"""Climbing and penalty game (Claus & Boutilier 1998, section 3): two agents have to agree on actions, and mistakes are dear."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.rendering.canvas import BODY, FAINT, FORCE, GOAL, Canvas
from jaxrl.envs.teams import Team, pad
from jaxrl.types import Array, Env, Key, TimeStep

CLIMBING = ((11, -30, 0), (-30, 7, 6), (0, 0, 5))
PAYOFFS = ("climbing", "penalty")
PENALTY = -50.0
"""Default of ``k``."""


class MatrixGameParams(NamedTuple):
    payoff: Any
    """f32[3, 3]: reward of both agents, by the action of the first (row) and of the second (column)."""


def matrix_game(payoff: str = "climbing", k: float | None = None, repeat: int = 25) -> Env:
    """``jaxrl:MatrixGame?payoff=climbing&repeat=25``: choose a row and a column of a matrix, whose entry both agents get.

    ``climbing`` is [[11, −30, 0], [−30, 7, 6], [0, 0, 5]]: the best return of a row is 11, and agents that do not know what the
    other will do prefer 7 or 5. ``penalty`` is [[k, 0, 10], [0, 2, 0], [10, 0, k]]: 10 is reached in two ways, and agents that
    choose different ones pay k. The game has no state, and is repeated ``repeat`` times (25 as in Papoudakis et al. 2021,
    section 4); then the episode terminates.

    Observations are constant, f32[1] with the value 1; to earn the 10 of ``penalty``, agents with shared parameters need the
    wrapper ``agent_id``. Actions are Discrete(3). The matrix is data (``MatrixGameParams``).

    Args:
      k: penalty, at most 0; only for ``payoff="penalty"``, where its default is −50.
    """

    def observe() -> tuple[Array, Array]:
        return jnp.ones(1), jnp.ones(1)

    def reset(key: Key, params: MatrixGameParams) -> tuple[Array, Any]:
        return jnp.zeros((), jnp.int32), observe()

    def step(key: Key, row: Array, actions: tuple[Array, ...], params: MatrixGameParams) -> tuple[Array, TimeStep]:
        first, second = actions
        reward = jnp.full(2, jnp.asarray(params.payoff, jnp.float32)[first, second])
        return row + 1, TimeStep(observe(), reward, row + 1 >= repeat, jnp.zeros((), bool))

    space, params = spaces.Box(0.0, 1.0, (1,), np.float32), MatrixGameParams(_matrix(payoff, k))
    game = Team(reset, step, (space,) * 2, (spaces.Discrete(3),) * 2, params, render=render, render_fps=4)
    return pad(game, agent_id=False)


def _matrix(payoff: str, k: float | None) -> np.ndarray:
    if payoff not in PAYOFFS:
        raise ValueError(f"jaxrl:MatrixGame: option payoff={payoff!r} must be one of {', '.join(PAYOFFS)}")
    if payoff == "climbing":
        if k is not None:
            raise ValueError(f"jaxrl:MatrixGame: option k={k!r} is the penalty of payoff=penalty; payoff=climbing has none")
        return np.array(CLIMBING, np.float32)
    k = PENALTY if k is None else k
    if isinstance(k, bool) or not isinstance(k, int | float) or not math.isfinite(k) or k > 0:
        raise ValueError(f"jaxrl:MatrixGame: option k={k!r} must be a number <= 0")
    return np.array([[k, 0, 10], [0, 2, 0], [10, 0, k]], np.float32)


def render(state: Any, actions: tuple[Any, ...] | None, params: MatrixGameParams) -> np.ndarray:
    """Draw the matrix: discs for its entries, green if positive and red if negative. The chosen entry is marked."""
    payoff = np.asarray(params.payoff)
    size = len(payoff)
    canvas, most = Canvas(0, size, 0, size), np.abs(payoff).max()
    for row, column in np.ndindex(payoff.shape):
        chosen = actions is not None and (row, column) == tuple(map(int, actions))
        left, bottom, value = column + 0.05, size - row - 0.95, payoff[row, column]
        right, top = left + 0.9, bottom + 0.9
        canvas.polygon([(left, bottom), (right, bottom), (right, top), (left, top)], BODY if chosen else FAINT)
        canvas.disc(left + 0.45, bottom + 0.45, 0.4 * float(np.sqrt(abs(value) / most)), GOAL if value > 0 else FORCE)
    return canvas.picture()

"""Games of two players in which a line of stones wins: Tic-tac-toe and Connect Four."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.rendering.canvas import BODY, FAINT, FORCE, GROUND, Canvas
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import PLAYER_KEY
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import Array, Env, Key, PyTree, Symmetries, TimeStep

DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""Directions of lines, (rows, columns)."""


class LineGameState(NamedTuple):
    stones: Array
    """bool[2, rows · columns]: stones of each player, row by row from the top"""
    player: Array
    """i32[]: whose move it is"""


def tic_tac_toe() -> Env:
    """``jaxrl:TicTacToe``: put stones on a board of 3 × 3; three in a line win.

    Two players (``Env.players``) take turns. A move that completes a line gets 1, one that is not allowed −1, and both terminate
    the game; a full board is a draw. Played well by both, the game is a draw.

    Observations are a Dict: ``observation`` f32[3, 3, 2], the stones of the player to move and those of the other,
    ``action_mask`` for the empty squares, and ``player``. Actions are Discrete(9), squares row by row from the top.
    """
    return _env(LineGame(3, 3, 3, falls=False))


def connect_four(rows: int = 6, columns: int = 7) -> Env:
    """``jaxrl:ConnectFour?rows=6&columns=7``: let stones fall into columns; four in a line win.

    As ``jaxrl:TicTacToe``, with observations f32[rows, columns, 2] and actions Discrete(columns). The player who begins wins the
    game of 6 × 7 if he plays well (Allis 1988).

    Args:
      rows: at least 4.
      columns: at least 4.
    """
    for name, value in (("rows", rows), ("columns", columns)):
        if value < 4:
            raise ValueError(f"jaxrl:ConnectFour: option {name}={value} must be an integer >= 4: a line has four stones")
    return _env(LineGame(rows, columns, 4, falls=True))


@cache
def lines(rows: int, columns: int, length: int) -> np.ndarray:
    """Return which squares belong to each line, f32[rows · columns, number of lines], of zeros and ones."""
    found = []
    for row, column in np.ndindex(rows, columns):
        for down, right in DIRECTIONS:
            squares = [(row + i * down, column + i * right) for i in range(length)]
            if all(0 <= r < rows and 0 <= c < columns for r, c in squares):
                line = np.zeros((rows, columns), np.float32)
                line[tuple(zip(*squares, strict=True))] = 1
                found.append(line.ravel())
    return np.stack(found, 1)


class LineGame(NamedTuple):
    """Description of a game: the board, the stones of a line, and whether stones fall to the lowest free square of a column."""

    rows: int
    columns: int
    length: int
    falls: bool

    @property
    def squares(self) -> int:
        return self.rows * self.columns

    @property
    def moves(self) -> int:
        return self.columns if self.falls else self.squares

    def reset(self, key: Key, params: PyTree) -> tuple[LineGameState, PyTree]:
        state = LineGameState(jnp.zeros((2, self.squares), bool), jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def observe(self, state: LineGameState) -> PyTree:
        own, other = state.stones[state.player], state.stones[1 - state.player]
        board = jnp.stack([own, other], -1).reshape(self.rows, self.columns, 2).astype(jnp.float32)
        free = ~(own | other)[: self.moves]  # a column is full if its top square is
        return {OBSERVATION: board, MASK_KEY: free.astype(jnp.int8), PLAYER_KEY: state.player}

    def square_of(self, free: Array, action: Array) -> Array:
        """Return the square of an action, or one that is not on the board if the action is not allowed."""
        if self.falls:
            depth = free.reshape(self.rows, self.columns)[:, action].sum(dtype=jnp.int32)
            return jnp.where(depth > 0, (depth - 1) * self.columns + action, self.squares)
        return jnp.where(free[action], action, self.squares)

    def step(self, key: Key, state: LineGameState, action: Array, params: PyTree) -> tuple[LineGameState, TimeStep]:
        square = self.square_of(~state.stones.any(0), action)
        stones = state.stones.at[state.player, square].set(True, mode="drop")
        on_lines = stones[state.player].astype(jnp.float32) @ lines(self.rows, self.columns, self.length)
        wins, illegal = (on_lines > self.length - 0.5).any(), square == self.squares
        reward = jnp.where(illegal, -1.0, wins.astype(jnp.float32))
        state = LineGameState(stones, 1 - state.player)
        return state, TimeStep(self.observe(state), reward, wins | illegal | stones.any(0).all(), jnp.zeros((), bool))

    def render(self, state: LineGameState, action: Any, params: PyTree) -> np.ndarray:
        """Draw the board; the first player's stones are blue, the other's red, and the last one has a white dot."""
        board: Any = np.asarray(state.stones).reshape(2, self.rows, self.columns)
        canvas, last = Canvas(0, self.columns, 0, self.rows), None
        if action is not None:
            row, column = divmod(int(action), self.columns)
            last = (int(np.argmax(board.any(0)[:, column])) if self.falls else row, column)
        for row, column in np.ndindex(self.rows, self.columns):
            x, y, (own, other) = column + 0.5, self.rows - row - 0.5, board[:, row, column]
            canvas.disc(x, y, 0.42, GROUND)
            canvas.disc(x, y, 0.38, BODY if own else FORCE if other else FAINT)
            if (row, column) == last:
                canvas.disc(x, y, 0.1, "#ffffff")
        return canvas.picture()


def _env(game: LineGame) -> Env:
    entries = {
        OBSERVATION: spaces.Box(0.0, 1.0, (game.rows, game.columns, 2), np.float32),
        MASK_KEY: spaces.MultiBinary(game.moves),
        PLAYER_KEY: spaces.Discrete(2),
    }
    env = Env(game.reset, game.step, spaces.Dict(entries), spaces.Discrete(game.moves), render=game.render, render_fps=2)
    return env._replace(players=2, symmetries=_symmetries(game))


def _symmetries(game: LineGame) -> Symmetries:
    """Return the reflections of a board, and where stones do not fall the rotations of a square one."""
    board = np.arange(game.squares).reshape(game.rows, game.columns)
    if game.falls:
        boards = [board, board[:, ::-1]]
        return Symmetries(np.stack([each.ravel() for each in boards]), np.stack([each[0] for each in boards]))
    turned = [np.rot90(each, k) for each in (board, board[:, ::-1]) for k in range(4)]
    maps = np.stack([each.ravel() for each in turned])
    return Symmetries(maps, maps)

"""Tic-tac-toe, solved: the exact value and the best moves of all unfinished positions."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jaxrl.envs.builtin.line_games import LineGameState

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
Board = tuple[int, ...]
"""Squares, row by row: 1 for a stone of the player to move, 2 for one of the other."""


def wins(board: Board) -> bool:
    """Return whether the player who has just moved, whose stones are 1 here, has a line."""
    return any(all(board[i] == 1 for i in line) for line in LINES)


def moved(board: Board, square: int) -> Board:
    """Return the board after a move, still from the view of the player who moved."""
    return (*board[:square], 1, *board[square + 1 :])


def turned(board: Board) -> Board:
    """Return the board from the view of the other player."""
    return tuple((0, 2, 1)[x] for x in board)


class Solved(NamedTuple):
    """All unfinished positions."""

    value: np.ndarray
    """f64[3**9]: value for the player to move, by the number of the board, Σ square · 3^i"""
    states: Any
    """States of all positions, [4520, …]"""
    number: np.ndarray
    """i64[4520]: the number of each board"""
    allowed: np.ndarray
    """bool[4520, 9]"""
    best: np.ndarray
    """bool[4520, 9]: moves that keep the value"""


@cache
def value_of(board: Board) -> tuple[int, tuple[int, ...]]:
    """Return the value for the player to move, and the values of all moves (−2 if not allowed)."""
    moves = []
    for square in range(9):
        after = moved(board, square)
        if board[square]:
            moves.append(-2)
        elif wins(after) or all(after):
            moves.append(int(wins(after)))
        else:
            moves.append(-value_of(turned(after))[0])
    return max(moves), tuple(moves)


@cache
def solved() -> Solved:
    value, boards, moves = np.zeros(3**9), [], []
    waiting, seen = [(0,) * 9], {(0,) * 9}
    while waiting:
        board = waiting.pop()
        found, each = value_of(board)
        value[number_of(board)] = found
        boards.append(board)
        moves.append(each)
        for square in np.flatnonzero(np.array(board) == 0):
            after = moved(board, square)
            if not wins(after) and not all(after) and (then := turned(after)) not in seen:
                seen.add(then)
                waiting.append(then)
    squares, values = np.array(boards), np.array(moves)
    player = ((squares > 0).sum(1) % 2).astype(np.int32)
    own, other = squares == 1, squares == 2
    first = np.where(player[:, None] == 0, own, other)
    second = np.where(player[:, None] == 0, other, own)
    states = LineGameState(np.stack([first, second], 1), player)  # type: ignore[arg-type]
    best = values == values.max(1, keepdims=True)
    return Solved(value, states, np.array([*map(number_of, boards)]), values > -2, best)


def number_of(board: Board) -> int:
    return sum(x * 3**i for i, x in enumerate(board))


def lost(moves: dict[int, int], side: int, board: Board = (0,) * 9, move: int = 0) -> int:
    """Return the number of lines of play that a player loses, over all replies of the other.

    Args:
      moves: the player's move in each position, by the number of its board.
      side: the player, 0 if it begins.
    """
    own = move % 2 == side
    total = 0
    for square in [moves[number_of(board)]] if own else np.flatnonzero(np.array(board) == 0):
        after = moved(board, int(square))
        if wins(after):
            total += not own
        elif not all(after):
            total += lost(moves, side, turned(after), move + 1)
    return total

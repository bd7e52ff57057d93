"""Connect Four, solved: 1,000 positions with their good and perfect moves, and a slow solver in Python to check the late ones.

The labels are those of ``connect_four.c``: ``python -m tests.helpers.oracles.connect_four`` compiles it and writes the file, in
a quarter of an hour. A move is good if it keeps the outcome, and perfect if it wins soonest or loses latest (Kaggle's ConnectX).
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import Env

ROWS, COLUMNS, SEED, NUMBER, PLIES = 6, 7, 1, 1_000, range(8, 31)
HERE = Path(__file__).parent
POSITIONS = HERE / "connect_four_positions.txt"
"""One position per line: the columns played, and the good and the perfect moves as hexadecimal masks, bit c for column c."""


class Positions(NamedTuple):
    played: list[str]
    """The columns played from the empty board."""
    good: np.ndarray
    """bool[N, 7]: moves that keep the outcome."""
    perfect: np.ndarray
    """bool[N, 7]"""


def positions() -> Positions:
    """Read the labelled positions."""
    rows = [line.split() for line in POSITIONS.read_text(encoding="ascii").splitlines()]
    good, perfect = (np.array([[int(row[i], 16) >> c & 1 for c in range(COLUMNS)] for row in rows], bool) for i in (1, 2))
    return Positions([row[0] for row in rows], good, perfect)


def replayed(env: Env, played: list[str]) -> tuple[Any, Any, np.ndarray]:
    """Play the positions from the empty board; return their states and observations, and whether a game was over on the way."""
    moves = np.array([[int(column) for column in each.ljust(PLIES[-1], str(COLUMNS))] for each in played], np.int32)

    def play(columns: Any) -> Any:
        state, obs = env.reset(jax.random.key(0), env.params)

        def move(at: Any, column: Any) -> Any:
            state, _, over = at
            after, reached = env.step(jax.random.key(0), state, jnp.minimum(column, COLUMNS - 1), env.params)
            new = (after, reached.obs, over | reached.terminated)
            return jax.tree.map(lambda old, new: jnp.where(column == COLUMNS, old, new), at, new), None

        return jax.lax.scan(move, (state, obs, jnp.zeros((), bool)), columns)[0]

    state, obs, over = jax.jit(jax.vmap(play))(moves)
    return state, obs, np.asarray(over)


def board_of(played: str) -> list[list[int]]:
    """Return the columns of a board, each with its stones from below: 0 for the player who began, 1 for the other."""
    columns: list[list[int]] = [[] for _ in range(COLUMNS)]
    for move, column in enumerate(played):
        columns[int(column)].append(move % 2)
    return columns


def ends(columns: list[list[int]], column: int) -> bool:
    """Return whether the last stone of a column completes a line."""
    row, stone = len(columns[column]) - 1, columns[column][-1]

    def same(c: int, r: int) -> bool:
        return 0 <= c < COLUMNS and 0 <= r < len(columns[c]) and columns[c][r] == stone

    for right, up in ((0, 1), (1, 0), (1, 1), (1, -1)):
        length = 1
        for side in (1, -1):
            step = 1
            while same(column + side * step * right, row + side * step * up):
                length, step = length + 1, step + 1
        if length >= 4:
            return True
    return False


def scores(played: str) -> list[int | None]:
    """Return the score of each move, None if its column is full, by trying all moves to the end: for late positions."""
    columns = board_of(played)

    @cache
    def after(board: tuple[tuple[int, ...], ...], column: int) -> int:
        stones = [list(each) for each in board]
        number = sum(map(len, stones))
        stones[column].append(number % 2)
        if ends(stones, column):
            return (ROWS * COLUMNS - number + 1) // 2
        if number + 1 == ROWS * COLUMNS:
            return 0
        reached = tuple(map(tuple, stones))
        return -max(after(reached, reply) for reply in range(COLUMNS) if len(stones[reply]) < ROWS)

    start = tuple(map(tuple, columns))
    return [after(start, column) if len(columns[column]) < ROWS else None for column in range(COLUMNS)]


def labels(found: list[int | None]) -> tuple[int, int]:
    """Return the masks of the good and of the perfect moves."""
    best = max(score for score in found if score is not None)
    good = sum(
        1 << c for c, score in enumerate(found) if score is not None and (score > 0) - (score < 0) == (best > 0) - (best < 0)
    )
    return good, sum(1 << c for c, score in enumerate(found) if score == best)


def draw(number: int, seed: int) -> list[str]:
    """Draw different positions of random games, with equal numbers of stones in turn."""
    rng, found = random.Random(seed), dict.fromkeys(())
    while len(found) < number:
        ply, columns, played = PLIES[len(found) % len(PLIES)], board_of(""), ""
        while len(played) < ply:
            column = rng.choice([c for c in range(COLUMNS) if len(columns[c]) < ROWS])
            columns[column].append(len(played) % 2)
            played += str(column)
            if ends(columns, column):
                break
        else:
            found[played] = None
    return [*found]


def write() -> None:
    """Draw the positions, solve them and write the file."""
    drawn = draw(NUMBER, SEED)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "solver"
        subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "connect_four.c")], check=True)
        solved = subprocess.run([str(program)], input="\n".join(drawn) + "\n", capture_output=True, text=True, check=True).stdout
    lines = []
    for played, text in zip(drawn, solved.splitlines(), strict=True):
        good, perfect = labels([None if score == "." else int(score) for score in text.split()])
        lines.append(f"{played} {good:02x} {perfect:02x}\n")
    POSITIONS.write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    write()

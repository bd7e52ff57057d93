"""Tic-tac-toe and Connect Four against plain Python, move by move."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.envs import EnvError, check_env, validate_env
from jaxrl.envs.builtin.line_games import LineGameState, lines
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.types import Env
from tests.helpers.oracles import connect_four
from tests.helpers.probes import two_players

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
Board = tuple[tuple[int, ...], ...]
"""Rows of 0 (empty), 1 and 2."""


def has_line(board: Board, player: int, length: int) -> bool:
    rows, columns = len(board), len(board[0])
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                ends = row + (length - 1) * down < rows and 0 <= column + (length - 1) * right < columns
                if ends and all(board[row + i * down][column + i * right] == player for i in range(length)):
                    return True
    return False


def played(board: Board, player: int, action: int, *, falls: bool) -> Board | None:
    """Return the board after a move; None if it is not allowed."""
    columns = len(board[0])
    column = action if falls else action % columns
    free = [row for row in range(len(board)) if board[row][column] == 0]
    row = (max(free) if free else None) if falls else action // columns
    if row is None or row not in free:
        return None
    return tuple(tuple(player if (r, c) == (row, column) else x for c, x in enumerate(line)) for r, line in enumerate(board))


def reachable(board: Board, length: int) -> list[tuple[Board, int]]:
    """Return all unfinished positions of Tic-tac-toe, with the player to move."""
    found, waiting = {board: 1}, [(board, 1)]
    while waiting:
        position, player = waiting.pop()
        for action in range(9):
            after = played(position, player, action, falls=False)
            over = after is not None and (has_line(after, player, length) or all(map(all, after)))
            if after is not None and not over and after not in found:
                found[after] = 3 - player
                waiting.append((after, 3 - player))
    return list(found.items())


def state_of(board: Board, player: int) -> LineGameState:
    squares = np.array(board).ravel()
    return LineGameState(np.stack([squares == 1, squares == 2]), np.int32(player - 1))


def compare(env: Env, positions: list[tuple[Board, int]], length: int, *, falls: bool) -> None:
    """Compare all moves in all positions with plain Python."""
    number = int(env.action_space.n)  # type: ignore[attr-defined]
    states: Any = jax.tree.map(lambda *x: np.repeat(np.stack(x), number, 0), *(state_of(*each) for each in positions))
    actions = np.tile(np.arange(number, dtype=np.int32), len(positions))
    step = jit(jax.vmap(lambda state, action: env.step(jax.random.key(0), state, action, ())))
    after, reached = jax.tree.map(np.asarray, step(states, actions))
    for i, action in enumerate(actions):
        board, player = positions[i // number]
        wanted = played(board, player, int(action), falls=falls)
        if wanted is None:
            assert reached.reward[i] == -1 and reached.terminated[i]
            continue
        wins = has_line(wanted, player, length)
        assert reached.reward[i] == wins and reached.terminated[i] == (wins or all(map(all, wanted)))
        np.testing.assert_array_equal(after.stones[i], state_of(wanted, 1).stones)
        own, other = (np.array(wanted) == each for each in (3 - player, player))
        np.testing.assert_array_equal(reached.obs["observation"][i], np.stack([own, other], -1))
        assert reached.obs["player"][i] == after.player[i] == 2 - player
        allowed = [played(wanted, 3 - player, each, falls=falls) is not None for each in range(number)]
        np.testing.assert_array_equal(reached.obs["action_mask"][i], allowed)
    assert not reached.truncated.any()


def test_tic_tac_toe_in_all_positions() -> None:
    positions = reachable(((0,) * 3,) * 3, 3)
    assert len(positions) == 4520
    compare(jaxrl.make_env("jaxrl:TicTacToe"), positions, 3, falls=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "columns"), [(6, 7), (4, 5)])
def test_connect_four_in_random_games(rows: int, columns: int) -> None:
    rng, positions = np.random.default_rng(rows), []
    for _ in range(12):
        board: Board = ((0,) * columns,) * rows
        for move in range(rows * columns):
            player = 1 + move % 2
            positions.append((board, player))
            allowed = [x for a in range(columns) if (x := played(board, player, a, falls=True)) is not None]
            board = allowed[rng.integers(len(allowed))]
            if has_line(board, player, 4):
                break
    compare(jaxrl.make_env(f"jaxrl:ConnectFour?rows={rows}&columns={columns}"), positions, 4, falls=True)  # type: ignore[arg-type]


def test_lines() -> None:
    assert lines(3, 3, 3).shape == (9, 8) and lines(6, 7, 4).shape == (42, 69)
    assert (lines(6, 7, 4).sum(0) == 4).all()


@pytest.mark.parametrize("name", ["TicTacToe", "ConnectFour"])
def test_symmetries_commute_with_moves(name: str) -> None:
    """A move on a board that is reflected or turned gives the board after the move, reflected or turned."""
    env: Any = jaxrl.make_env(f"jaxrl:{name}")
    step, rng = jit(lambda state, action: env.step(jax.random.key(0), state, action, ())), np.random.default_rng(0)
    state, obs = env.reset(jax.random.key(0), ())
    squares, actions = env.symmetries
    assert len(squares) == len({each.tobytes() for each in squares}) == len(actions) == {"TicTacToe": 8, "ConnectFour": 2}[name]
    np.testing.assert_array_equal(squares[0], np.arange(squares.shape[1]))
    for _ in range(5):
        action = rng.choice(np.flatnonzero(obs["action_mask"]))
        after, reached = step(state, jnp.int32(action))
        for places, moves in zip(squares, actions, strict=True):
            seen = state._replace(stones=state.stones[:, places])
            there, reached_there = step(seen, jnp.int32(np.flatnonzero(moves == action)[0]))
            np.testing.assert_array_equal(there.stones, after.stones[:, places])
            np.testing.assert_array_equal(reached_there.obs["action_mask"], reached.obs["action_mask"][moves])
        state, obs = after, reached.obs


@pytest.mark.parametrize("name", ["TicTacToe", "ConnectFour"])
def test_games_keep_the_contract(name: str) -> None:
    env: Any = jaxrl.make_env(f"jaxrl:{name}")
    assert env.players == 2
    check_env(env)
    state, _ = env.reset(jax.random.key(0), ())
    for action in (None, 2):
        picture = env.render(state, action, ())
        assert picture.ndim == 3 and picture.std() > 10
        state, _ = env.step(jax.random.key(0), state, jnp.int32(2), ())


@pytest.mark.parametrize("option", ["rows=3", "columns=2"])
def test_boards_that_are_too_small(option: str) -> None:
    with pytest.raises(ValueError, match=rf"option {option} must be an integer >= 4"):
        jaxrl.make_env(f"jaxrl:ConnectFour?{option}")


def test_players_and_who_moves_belong_together() -> None:
    env = two_players()
    for broken, message in (
        (env._replace(players=1), "has 'player', which is for games of two players: set players=2, or rename"),
        (env._replace(players=3), "players=3 must be 1, or 2"),
        (env._replace(num_agents=2), "a game has one lane for both players, so leave num_agents out"),
        (env._replace(observation_space=env.observation_space["position"]), "use a Dict with 'player'"),  # type: ignore[index]
    ):
        with pytest.raises(EnvError, match=message):
            validate_env(broken)


def test_populations_do_not_play_games() -> None:
    with pytest.raises(ValueError, match="ES is for environments of one player, and jaxrl:TicTacToe is a game of two"):
        jaxrl.make_es("jaxrl:TicTacToe", horizon=9)


def test_labelled_positions_of_connect_four() -> None:
    """1,000 different positions with equal numbers of stones in turn. The latest are solved again here, by trying all moves."""
    found = connect_four.positions()
    assert len({*found.played}) == len(found.played) == connect_four.NUMBER
    sizes = np.bincount([len(each) for each in found.played])
    assert sizes[: connect_four.PLIES[0]].sum() == 0 and np.ptp(sizes[connect_four.PLIES]) <= 1
    assert found.perfect.any(1).all() and not (found.perfect & ~found.good).any()
    late = sorted(range(len(found.played)), key=lambda i: -len(found.played[i]))[:40]
    for i in late:
        good, perfect = connect_four.labels(connect_four.scores(found.played[i]))
        assert [good, perfect] == [int(mask[i] @ 2 ** np.arange(7)) for mask in (found.good, found.perfect)]


def test_connect_four_goes_on_in_the_labelled_positions() -> None:
    env: Any = jaxrl.make_env("jaxrl:ConnectFour")
    found = connect_four.positions()
    _, obs, over = connect_four.replayed(env, found.played)
    assert not over.any()
    assert not (found.good & ~np.asarray(obs["action_mask"], bool)).any()
    np.testing.assert_array_equal(np.asarray(obs["observation"]).sum((1, 2, 3)), [len(each) for each in found.played])


def test_symmetries_go_where_they_do_not_fit() -> None:
    name = "jaxrl:TicTacToe"
    assert jaxrl.make_env(f"{name}|frame_stack(2)").symmetries is not None
    assert jaxrl.make_env(f"{name}|flatten_observation").symmetries is None

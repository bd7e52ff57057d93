"""``jaxrl play``: a game in the terminal, from both sides, with wrong input, undo and an early end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxrl
from jaxrl.runtime.cli.main import main
from tests.helpers.agents import small

TIC_TAC_TOE = ("--env", "jaxrl:TicTacToe")
pytestmark = pytest.mark.usefixtures("in_this_process")


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> Iterator[str]:
    """Type these words, and then Ctrl-D."""
    rest = iter(words)

    def read(prompt: str) -> str:
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    return rest


def test_a_game(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two moves of the person, the first of which is taken back, and words that are not moves."""
    typed(monkeypatch, "0", "0", "nine", "undo", "4")
    assert main(["play", "two_ply", *TIC_TAC_TOE]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("\n· · ·\n· · ·\n· · ·\n0 1 2\n")
    assert "X" in shown and "It plays" in shown and shown.count("Type one of") == 2 and shown.endswith("Ended.\n")
    last = shown.rsplit("\n\n", 2)[-2]
    assert last.splitlines()[2][2] == "X" and last.count("X") == 1 and last.count("O") == 1  # the first move was taken back


@pytest.mark.parametrize(("second", "end"), [((), "You win."), (("--second",), "You lose.")])
def test_who_wins(second: tuple[str, ...], end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Sooner or later the same columns win against random play, and lose against a player that looks ahead."""
    for seed in range(20):
        typed(monkeypatch, *["3", "2", "4", "1", "5", "0", "6"] * 8)
        assert (
            main(
                ["play", "random" if end == "You win." else "two_ply", "--env", "jaxrl:ConnectFour", "--seed", str(seed), *second]
            )
            == 0
        )
        if capsys.readouterr().out.endswith(f"{end}\n"):
            return
    raise AssertionError(f"no game ended so: {end}")


@pytest.mark.slow
def test_against_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    agent = small("alphazero", "jaxrl:TicTacToe")
    jaxrl.run(agent, 2 * agent.steps_per_iteration, out=tmp_path / "az", eval_episodes=2, tensorboard=False, quiet=True)
    capsys.readouterr()
    for more in ((), ("--network-alone",)):
        typed(monkeypatch, "4")
        assert main(["play", str(tmp_path / "az"), "--second", *more]) == 0
        assert capsys.readouterr().out.count("It plays") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["random"], "random can play any game: add --env"),
        (["random", "--env", "CartPole-v1"], "CartPole-v1 is not a game of two players"),
        (["random", "--env", "pgx:kuhn_poker"], "pgx:kuhn_poker cannot be shown as text"),
        (["random", "--env", "jaxrl:TicTacToe", "--seed", "4294967296"], "seed=4294967296 must be between 0 and 2**32 - 1"),
        (["runs/nothing"], "runs/nothing"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *arguments]) == 2
    assert message in capsys.readouterr().err

"""``jaxrl arena``: tables, a picture and JSON of games between runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import jaxrl
from jaxrl.runtime.cli.main import main
from tests.helpers.agents import small

TIC_TAC_TOE = "jaxrl:TicTacToe"
pytestmark = pytest.mark.usefixtures("in_this_process")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained, agent = tmp_path / "ppo", small("ppo", TIC_TAC_TOE)
    jaxrl.run(agent, 2 * agent.steps_per_iteration, out=trained, eval_episodes=2, tensorboard=False, quiet=True)
    picture = tmp_path / "ratings.png"
    assert main(["arena", str(trained), "random", "--games", "8", "--out", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert f"{TIC_TAC_TOE}: 8 games of each pair" in shown and "Elo [95 %]" in shown and picture.stat().st_size > 5_000
    picture.unlink()
    assert main(["arena", str(trained), "random", "--games", "8", "--json", "-", "--out", str(picture)]) == 0
    assert picture.exists()
    found = json.loads(capsys.readouterr().out)
    assert found["names"] == ["ppo", "random"] and found["ratings"][1] == 0 and found["games"] == 8
    for arguments, message in (
        (["random"], "name at least two different players"),
        (["random", "one_ply"], "random and one_ply can play any game: add --env"),
        ([str(trained), "random", "--seed", "-1"], "seed=-1 must be between 0 and 2**32 - 1"),
        ([str(trained), "random", "--out", "x.txt"], "must end in one of .png"),
        ([str(trained), "random", "--json", f"{__file__}/x.json"], "cannot be written to"),
        ([str(trained), "random", "--out", f"{__file__}/x.png"], "cannot be written to"),
    ):
        assert main(["arena", *arguments]) == 2
        assert message in capsys.readouterr().err

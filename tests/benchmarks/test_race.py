"""Races to a score: who reached it, and jaxrl's side in a new process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import race
from benchmarks.__main__ import main
from benchmarks.race_cases import CARTPOLE, MANY, RACES
from jaxrl.algorithms.presets import PRESETS


def test_only_runs_that_reach_the_score_count() -> None:
    ran = [(3.0, 100, 475.0), (9.0, 300, 480.0), (1.0, 500, 474.9)]
    runs = [{"seconds": seconds, "steps": steps, "reached": reached} for seconds, steps, reached in ran]
    assert race.cells({"score": 475.0}, runs) == ["6.0 (3.0–9.0)", "200", "2 of 3"]
    assert race.cells({"score": 475.0}, runs[2:]) == ["–", "–", "0 of 1"]


def test_sides_play_the_environment_of_the_preset() -> None:
    for each in RACES:
        preset = PRESETS[each.sides["jaxrl"]["preset"]]
        assert {how["env"] for side, how in each.sides.items() if side != "jaxrl"} == {preset.env}
        assert ({"sbx", "sb3"} & {*each.sides}) <= ({"sbx", "sb3"} if each.num_seeds == 1 else set())
        assert {*each.sides} <= {*race.TITLES}
        assert each.num_seeds in (1, MANY)


@pytest.mark.slow
def test_a_race_without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(race, "RACES", (CARTPOLE._replace(score=15.0, total_steps=20_000),))
    assert main(["race", "--without-peer", "--repeats", "1", "--out", str(tmp_path)]) == 0
    (found,) = json.loads((tmp_path / "race.json").read_text())["races"]
    (run,) = found["runs"]["jaxrl"]
    assert run["reached"] >= 15 and 0 < run["steps"] <= 20_480 and run["seconds"] > 1
    assert "1 of 1" in capsys.readouterr().out

"""The table of scores in the site, with curves, and reproductions of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import reproductions, sparklines
from benchmarks.__main__ import main
from benchmarks.experiment import Experiment
from benchmarks.mujoco_report import mujoco_table
from benchmarks.score_report import score_table
from benchmarks.scores import run_experiment
from docs import hooks

SMALL = Experiment(
    "a2c-cartpole", "make_a2c", "CartPole-v1", {"num_envs": 4, "rollout_length": 8, "model": {"hidden_sizes": (4,)}}, 512, 2, 5.0
)


def row(interval: tuple[float, float], published: tuple[float, float]) -> dict[str, Any]:
    return {
        "interval": [*interval],
        "mean": np.mean(interval),
        "published": {"interval": [*published], "mean": np.mean(published)},
    }


@pytest.mark.parametrize(
    ("interval", "published", "verdict"),
    [
        ((1.0, 2.0), (1.5, 3.0), "reproduced"),
        ((500.0, 500.0), (500.0, 500.0), "reproduced"),
        ((4.0, 5.0), (1.0, 3.0), "higher"),
        ((-2.0, -1.0), (1.0, 3.0), "lower"),
    ],
)
def test_scores_are_reproduced_if_intervals_overlap(
    interval: tuple[float, float], published: tuple[float, float], verdict: str
) -> None:
    found = row(interval, published)
    assert reproductions.verdict(found) == verdict
    assert reproductions.missed({"rows": {"a": found}}) == (verdict == "lower")


def test_only_short_rows_with_a_lower_limit_are_drawn() -> None:
    drawn = {name for _ in range(20) for name in reproductions.drawn(Path("benchmarks/results/scores"), 20)}
    results = {name: json.loads(Path(f"benchmarks/results/scores/{name}.json").read_text()) for name in drawn}
    assert len(drawn) > 20 and max(result["train_seconds"] for result in results.values()) < reproductions.SHORT
    assert not any(result["experiment"].get("data") or "≥" not in result["asked"] for result in results.values())


@pytest.mark.parametrize(
    ("results", "cells"),
    [
        ([], ["–", "–", "–"]),
        ([("sac-halfcheetah", 300_032, 8211.0)], ["300,032", "8211.0 [8211.0, 8211.0]", "within or above"]),
        (
            [("sac-mujoco-halfcheetah-1m", 1_000_000, 8210.0), ("sac-halfcheetah", 300_032, 9000.0)],
            ["1,000,000", "8210.0 [8210.0, 8210.0]", "below"],
        ),
    ],
)
def test_scores_of_mujoco_beside_those_of_other_libraries(results: list[tuple[str, int, float]], cells: list[str]) -> None:
    """A score with a million steps takes the place of one with fewer; CleanRL has 9,635 ± 1,424."""
    found = [{"name": name, "total_steps": steps, "mean": x, "interval": [x, x]} for name, steps, x in results]
    lines = [line for line in mujoco_table(found).splitlines() if line.startswith("| SAC       | HalfCheetah")]
    steps, score, cleanrl, *_, verdict = [cell.strip() for cell in lines[0].split("|")[3:-1]]
    assert len(lines) == 1 and [steps, score, verdict] == cells and cleanrl == "9,635 ± 1,424"


@pytest.mark.slow
def test_a_score_is_reproduced_on_other_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(reproductions.EXPERIMENTS, SMALL.name, SMALL)
    before = run_experiment(SMALL, tmp_path / "scores", tmp_path / "work", quiet=True)
    paths = ["--scores", tmp_path, "--out", tmp_path, "--work", tmp_path / "work"]
    status = main(["reproduce", SMALL.name, "--first-seed", "7", *map(str, paths)])
    found = json.loads((tmp_path / "reproductions.json").read_text())["rows"][SMALL.name]
    assert before["seeds"] == [0, 1] and found["seeds"] == [7, 8] and found["scores"] != before["scores"]
    assert found["published"] == {key: before[key] for key in found["published"]} and before["commit"]
    assert status == (reproductions.verdict(found) == "lower")
    told = capsys.readouterr()
    assert "| 7 to 8 |" in " ".join(told.out.split()) and "1 of 1: a2c-cartpole, seeds 7 to 8" in told.out + told.err
    assert "of 1 reproduced; written to" in told.out + told.err


def test_rows_that_cannot_be_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "ppo-cartpole", "--scores", str(tmp_path)]) == 2
    assert f"no score of ppo-cartpole in {tmp_path / 'scores'}, to compare with" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce", "bc-pendulum-expert"])
    assert "bc-pendulum-expert learns from a dataset; reproduce trains only agents" in capsys.readouterr().err


def test_each_score_has_a_curve_in_the_site() -> None:
    result = {
        "name": "a-b",
        "history": {"env_steps": [0, 50, 100], "charts/episodic_return": [[0, 2], [None, 4], [8, 10]]},
    }
    titles, cells = ("experiment", "steps", "seeds", "mean", "commit"), ("a-b", "100", "2", "9", "1f")
    head = "".join(f"\n<th>{title}</th>" for title in titles)
    body = "".join(f'\n<td style="text-align: left;">{cell}</td>' for cell in cells)
    scores = f"<thead>\n<tr>{head}\n</tr>\n</thead>\n<tbody>\n<tr>{body}\n</tr>\n</tbody>"
    content = f"<table>\n{scores}\n</table>\n<table>\n<tr>\n<td>other</td>\n</tr>\n</table>"
    found = sparklines.with_curves(content, [result])
    assert 'points="0,24 50,15 100,0"' in found and "<title>a-b: 1 to 9</title>" in found  # means 1, 4 and 9
    assert found.count("<svg") == found.count("<th>curve</th>") == 1
    assert found.index("mean</th>") < found.index("curve</th>") < found.index("commit</th>")
    assert found.index(">9</td>") < found.index("<svg") < found.index(">1f</td>")
    alone = {"name": "a-b", "history": {"env_steps": [5], "charts/episodic_return": [[1]]}}
    assert sparklines.sparkline(alone) == ""


def test_columns_of_the_page_are_those_that_the_selects_filter_by() -> None:
    header = next(line for line in score_table(hooks.read_scores(hooks.SCORES)).splitlines() if line.startswith("| experiment"))
    script = (hooks.ROOT / "docs/filter.js").read_text(encoding="utf-8")
    (names,) = (line for line in script.splitlines() if "const columns" in line)
    for name in ("algorithm", "environment", "passed"):
        assert f" {name} |" in header and f'"{name}"' in names

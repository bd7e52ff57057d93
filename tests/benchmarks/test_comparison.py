"""Committed figures and tables match the committed scores: learning curves, and the comparison of DQN's switches."""

import json
from pathlib import Path

import pytest

from benchmarks import pictures, speed_picture
from benchmarks.comparison import FIGURE, comparison_table, draw, is_of, read_compared
from benchmarks.experiments import EXPERIMENTS
from benchmarks.summary import README_CASES, read_speed
from benchmarks.switches import PANELS, SWITCHES
from jaxrl.algorithms.presets import interval_text
from tests.helpers.paths import ROOT

COMPARED = read_compared(ROOT / "benchmarks/results/scores")


SCORES = {result["name"]: result for result in pictures.read_scores(ROOT / "benchmarks/results/scores")}
PAGES = pictures.pages([*SCORES.values()])


@pytest.mark.parametrize("name", PAGES)
def test_a_picture_is_of_the_scores_of_its_page(name: str) -> None:
    path = ROOT / f"benchmarks/results/curves/{name}.png"
    assert pictures.is_of(path, PAGES[name]), "python -m benchmarks table"
    assert "asked" not in pictures.identity(PAGES[name])  # requirements are only in the tables


def test_each_score_is_on_one_page_and_no_picture_is_left_over() -> None:
    shown = [result["name"] for name, results in PAGES.items() if name != pictures.FRONT for result in results]
    assert sorted(shown) == sorted(SCORES) and set(shown) <= set(EXPERIMENTS)
    assert {path.stem for path in (ROOT / "benchmarks/results/curves").iterdir()} == set(PAGES)


def test_a_picture_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, path = SCORES["ppo-cartpole"], tmp_path / "ppo-cartpole.png"
    title, subtitle = pictures.headings(result)
    assert title == "PPO · CartPole-v1 · 16 seeds" and subtitle.startswith("greedy return at the end of training: 500.0 [")
    assert pictures.headings(SCORES["ppo-pong"])[1] == "return of the last 104 training episodes: -5.17"
    assert pictures.panel_title(result) == "ppo-cartpole\n500.0 [500.0, 500.0], 16 seeds"
    assert pictures.panel_title(SCORES["ppo-pong"]) == "ppo-pong\n-5.17, 1 seed"
    assert not pictures.is_of(path, [result])
    (tmp_path / "scores").mkdir()
    for name in ("ppo-cartpole", "ppo-pong"):
        (tmp_path / "scores" / f"{name}.json").write_text(json.dumps(SCORES[name]))
    (tmp_path / "of-before.png").touch()
    pictures.draw_missing(tmp_path / "scores", tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"ppo.png", "ppo-cartpole.png"}
    assert pictures.is_of(tmp_path / "ppo.png", [result, SCORES["ppo-pong"]])
    assert pictures.is_of(path, [result]) and path.stat().st_size > 10_000
    assert not pictures.is_of(path, [result | {"mean": 499.0}]) and not pictures.is_of(path, [result | {"history": {}}])
    monkeypatch.setattr(pictures, "draw", lambda *_: pytest.fail("drawn again"))
    pictures.draw_missing(tmp_path / "scores", tmp_path)


def test_the_figure_is_of_the_scores() -> None:
    assert is_of(ROOT / FIGURE, COMPARED), "python -m benchmarks table"


def test_a_figure_of_other_scores_is_known(tmp_path: Path) -> None:
    env, results = next(iter(COMPARED.items()))
    draw(one := {env: results}, tmp_path / "one.png")
    draw(COMPARED, tmp_path / "all.png")
    assert is_of(tmp_path / "one.png", one) and is_of(tmp_path / "all.png", COMPARED)
    assert not is_of(tmp_path / "none.png", one)
    label, result = next(iter(results.items()))
    assert not is_of(tmp_path / "one.png", {env: results | {label: result | {"scores": [0.0]}}})


def test_the_variants_are_experiments() -> None:
    for env, names in PANELS.items():
        assert all(EXPERIMENTS[name].env == env for name in names)
        assert len({EXPERIMENTS[name].num_seeds for name in names}) == len({EXPERIMENTS[name].total_steps for name in names}) == 1
    for name, variant in SWITCHES.items():
        assert EXPERIMENTS[f"dqn-cartpole-{name}"].settings == variant.settings


@pytest.mark.parametrize("env", COMPARED)
def test_the_table_has_each_score(env: str) -> None:
    text = comparison_table(COMPARED, env)
    for label, result in COMPARED[env].items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {label} "))
        assert interval_text(result["mean"], *result["interval"]) in row and result["name"] in row


def test_what_was_not_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="no scores of Pong"):
        comparison_table(COMPARED, "Pong")


def test_the_bars_are_of_the_measured_speed(tmp_path: Path) -> None:
    bars = speed_picture.bars(read_speed(ROOT / "benchmarks/results"))
    assert len(bars) == len(README_CASES) and speed_picture.is_of(ROOT / speed_picture.FIGURE, bars), "python -m benchmarks table"
    path = tmp_path / "speed.png"
    assert not speed_picture.is_of(path, bars)
    speed_picture.draw(bars[:2], path)
    assert speed_picture.is_of(path, bars[:2]) and not speed_picture.is_of(path, bars)

"""The committed figures and tables are those of the committed scores: learning curves, and DQN's switches beside each other."""

import json
from pathlib import Path

import pytest

from benchmarks import pictures
from benchmarks.comparison import FIGURE, comparison_table, draw, is_of, read_compared
from benchmarks.experiments import EXPERIMENTS
from benchmarks.switches import PANELS, SWITCHES
from jaxrl.algorithms.presets import interval_text

ROOT = Path(__file__).parents[1]
COMPARED = read_compared(ROOT / "benchmarks/results/scores")


SCORES = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks/results/scores").glob("*.json"))}


@pytest.mark.parametrize("name", SCORES)
def test_the_picture_of_a_score_is_of_it(name: str) -> None:
    path = ROOT / f"benchmarks/results/scores/{name}.png"
    assert pictures.is_of(path, SCORES[name]), "python -m benchmarks table"
    assert "asked" not in pictures.identity(SCORES[name])  # that is for the tables


def test_a_picture_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, path = SCORES["ppo-cartpole"], tmp_path / "ppo-cartpole.png"
    title, subtitle = pictures.headings(result)
    assert title == "PPO · CartPole-v1 · 16 seeds" and subtitle.startswith("greedy return at the end of training: 500.0 [")
    assert pictures.headings(SCORES["ppo-pong"])[1] == "return of the last 104 training episodes: -5.17"
    assert not pictures.is_of(path, result)
    (tmp_path / "ppo-cartpole.json").write_text(json.dumps(result))
    pictures.draw_missing(tmp_path)
    assert pictures.is_of(path, result) and path.stat().st_size > 10_000
    assert not pictures.is_of(path, result | {"mean": 499.0}) and not pictures.is_of(path, result | {"history": {}})
    monkeypatch.setattr(pictures, "draw", lambda *_: pytest.fail("drawn again"))
    pictures.draw_missing(tmp_path)


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

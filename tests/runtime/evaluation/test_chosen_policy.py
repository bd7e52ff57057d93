"""Warnings about greedy evaluations far below training, and the report of the chosen policies with the others' scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.runtime.evaluation.chosen_policy import chosen, greedy_warning
from jaxrl.runtime.logs.greedy_gap import greedy_gap
from jaxrl.runtime.run import run
from jaxrl.types import Agent, Max, Mean, Min
from tests.helpers.fakes import FakeDriver, faked


def a_run(agent: Agent, monkeypatch: pytest.MonkeyPatch, out: Path | None, training: float, scores: Any, **settings: Any) -> None:
    """Run ten iterations, evaluated after 0, 4, 8 and 10 with ``scores``. Training reaches this return from 100 less."""
    driver = faked(monkeypatch, {})
    driver.scores = scores

    def iterate(*given: Any) -> Any:
        states, metrics, alive = FakeDriver.iterate(driver, *given)
        ones = np.ones(2)
        episodes = {
            "charts/episodic_return": Mean((training - 100 * (driver.calls == 1)) * ones, ones),
            "charts/episodic_return_min": Min(training - 100 * ones),
            "charts/episodic_return_max": Max(training + 100 * ones),
        }
        return states, metrics | episodes, alive

    monkeypatch.setattr(driver, "iterate", iterate)
    run(agent, 320, seeds=2, out=out, chunk_iterations=2, eval_every=4, tensorboard=False, **settings)


def test_a_gap_is_told_of_at_the_end_and_wherever_the_policy_is_taken(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {0: -2000.0, 4: -800.0, 8: -950.0, 10: -927.0}
    a_run(agent, monkeypatch, tmp_path / "a", 48.0, scores)
    *_, before, last = capsys.readouterr().out.splitlines()
    assert before.startswith("done at step 320 of 320") and last.startswith(
        "greedy evaluations return -927.0 where training, which explores, returned 48.0, and best/ was chosen by the greedy ones"
    )
    assert "--eval-explore" in last and "jaxrl eval RUN --which last --explore" in last
    best = "best policies: iteration 4, evaluation return -800.0; the last: iteration 10, -927.0"
    assert chosen(tmp_path / "a", "best", 4) == best
    assert chosen(tmp_path / "a", "last", 10) == (
        "last policies: iteration 10, evaluation return -927.0; the best: iteration 4, -800.0"
    )
    said = "its greedy evaluations return -927.0 where training, which explores, returned 48.0"
    assert greedy_warning(tmp_path / "a") == said

    a_run(agent, monkeypatch, tmp_path / "b", 48.0, scores, eval_explore=True)
    assert "greedy" not in capsys.readouterr().out and greedy_warning(tmp_path / "b") is None


def test_the_best_may_be_the_last(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    a_run(agent, monkeypatch, tmp_path, 48.0, {0: 1.0, 4: 10.0, 8: 20.0, 10: 49.0})
    assert "greedy" not in capsys.readouterr().out and greedy_warning(tmp_path) is None
    assert chosen(tmp_path, "best", 10) == "best policies: iteration 10, evaluation return 49.0, which is also the last"
    (tmp_path / "records.jsonl").write_text("damaged\n")
    assert chosen(tmp_path, "best", 10) == "best policies: iteration 10, which is also the last"
    assert greedy_warning(tmp_path) is None


@pytest.mark.parametrize(
    ("greedy", "training", "spread", "far"),
    [
        (-927.0, 48.0, 400.0, True),
        (1.08, 16.3, 30.0, True),
        (-160.0, -150.0, 300.0, False),
        (500.0, 180.0, 400.0, False),
        (1.0, 5.0, 30.0, False),  # training began at 3.0
        (0.0, 0.04, 2.0, False),  # rewards are ±1, so it may be chance
    ],
)
def test_what_is_far(greedy: float, training: float, spread: float, far: bool) -> None:
    nothing = [np.nan, np.nan]
    before = 3.0 if training == 5.0 else training - spread / 5
    training_returns = np.array([nothing, *[[before, np.nan]] * 4, [training, np.nan]])
    last = lambda value: np.array([*[nothing] * 5, [value, np.nan]])  # noqa: E731
    history = {
        "evaluation/episodic_return": last(greedy),
        "charts/episodic_return": training_returns,
        "charts/episodic_return_min": last(training - spread / 2),
        "charts/episodic_return_max": last(training + spread / 2),
    }
    assert (greedy_gap(history) == (greedy, training)) if far else greedy_gap(history) is None
    assert greedy_gap({**history, "charts/episodic_return": training_returns[2:]}) is None  # too short to decide
    assert greedy_gap({**history, "charts/episodic_return": last(np.nan)}) is None
    only_before_training = np.array([[greedy, greedy], *[nothing] * 5])
    assert greedy_gap({**history, "evaluation/episodic_return": only_before_training}) is None

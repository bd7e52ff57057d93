"""The score experiments of ``python -m benchmarks scores`` that take minutes, each with its threshold."""

import json
from pathlib import Path

import pytest

from benchmarks.arguments import RESULTS
from benchmarks.experiments import EXPERIMENTS
from benchmarks.scores import run_experiment
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(600)

MOST_SECONDS = 300
"""Training time of the committed score. Longer experiments run only by the command, as `make test-all` says."""


def is_short(name: str) -> bool:
    """Return True for an experiment whose committed score passed, within the time, and without a dataset, which takes longer."""
    path = ROOT / RESULTS / "scores" / f"{name}.json"
    if EXPERIMENTS[name].data or not path.exists():
        return False
    result = json.loads(path.read_text(encoding="utf-8"))
    return result["passed"] is True and result["train_seconds"] <= MOST_SECONDS


@pytest.mark.learning
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if is_short(name)])
def test_score(name: str, tmp_path: Path) -> None:
    result = run_experiment(EXPERIMENTS[name], tmp_path / "results", tmp_path / "work")
    assert result["passed"], f"{name}: {result['mean']:.1f}, asked: {result['asked']}; per seed: {result['scores']}"

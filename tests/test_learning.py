"""The score experiments of ``python -m benchmarks scores``, each with its own threshold."""

import pytest

from benchmarks.experiments import EXPERIMENTS
from benchmarks.scores import run_experiment


@pytest.mark.learning
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_score(name, tmp_path):
    result = run_experiment(EXPERIMENTS[name], tmp_path / "results", tmp_path / "work")
    assert result["passed"], f"{name}: {result['mean']:.1f}, asked: {result['asked']}; per seed: {result['scores']}"

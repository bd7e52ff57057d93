"""The score experiments of ``python -m benchmarks scores``, each with its threshold."""

import pytest

from benchmarks.experiments import EXPERIMENTS
from benchmarks.game_scores import GAME_SCORES
from benchmarks.minatar_scores import MINATAR_SCORES
from benchmarks.mujoco_scores import MUJOCO_SCORES
from benchmarks.scores import run_experiment
from benchmarks.switches import SWITCHES
from benchmarks.team_scores import TEAM_SCORES

pytestmark = pytest.mark.expensive(600)

MOST_ROWS = 20_000_000
"""Rows of all seeds together, which take minutes. Longer experiments run only by the command, as `make test-all` says."""
LONG = {"sac-halfcheetah", "ppo-pong", *(score.name for score in (*MUJOCO_SCORES, *MINATAR_SCORES))}
LONG |= {f"dqn-cartpole-{name}" for name in SWITCHES}
LONG |= {score.name for score in (*TEAM_SCORES, *GAME_SCORES) if score.total_steps > 500_000}
LONG |= {name for name, x in EXPERIMENTS.items() if x.data}
"""Experiments with fewer rows that take half an hour and more; those of offline learning need a dataset that takes as long."""
MISSED = {"qmix-switchriddle", "vdn-switchriddle", "td3-pendulum-hidden"}
"""Experiments that do not reach what is asked of them yet."""
LONG |= MISSED | {name for name, x in EXPERIMENTS.items() if x.threshold is None}
"""Experiments that only compare have nothing that can fail."""
SHORT = {"es-cartpole", "es-pendulum", "es-acrobot"}
"""Experiments with more rows that take minutes: evolution does not learn from each of them."""


@pytest.mark.learning
@pytest.mark.parametrize(
    "name",
    [name for name, x in EXPERIMENTS.items() if name in SHORT or (x.total_steps * x.num_seeds <= MOST_ROWS and name not in LONG)],
)
def test_score(name, tmp_path):
    result = run_experiment(EXPERIMENTS[name], tmp_path / "results", tmp_path / "work")
    assert result["passed"], f"{name}: {result['mean']:.1f}, asked: {result['asked']}; per seed: {result['scores']}"

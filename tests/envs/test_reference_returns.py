"""Normalised scores: D4RL's references by the names of environments."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl.envs.reference_returns import REFERENCES, normalized_score
from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.cli.commands.eval import EvalOptions, remarks
from jaxrl.runtime.evaluation.evaluate_runs import RunScore


@pytest.mark.parametrize(
    "env", ["envpool:HalfCheetah-v4", "HalfCheetah-v5", "HalfCheetah", "gymnasium:HalfCheetah-v4?x=1", "HalfCheetah-v4|scale(2)"]
)
def test_the_version_and_settings_do_not_count(env: str) -> None:
    assert normalized_score(env, 8885.2) == pytest.approx(73.82, abs=0.01)


@pytest.mark.parametrize("name", REFERENCES)
def test_random_actions_score_0_and_the_expert_100(name: str) -> None:
    np.testing.assert_allclose(normalized_score(f"envpool:{name}-v4", np.array(REFERENCES[name])), [0, 100])


def test_others_have_none() -> None:
    assert normalized_score("CartPole-v1", 500.0) is None and normalized_score("my_module:HalfCheetahRun", 1.0) is None


def test_jaxrl_eval_says_it() -> None:
    played = Evaluation(*np.full((2, 2, 3), 12135.0), np.ones((2, 3), bool))
    result = RunScore("runs/x", "IQL", "envpool:HalfCheetah-v4", 3, [0, 1], played, [], {})
    options = EvalOptions(runs=("runs/x",))
    assert any("normalised score 100.0 ± 0.0: 0 is random" in line for line in remarks(result, options))
    assert not any("normalised" in line for line in remarks(result._replace(env="gymnax:CartPole-v1"), options))

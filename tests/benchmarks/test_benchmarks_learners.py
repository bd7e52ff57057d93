"""The benchmark of learners: its sides train, and the plain loop on the right rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import learners


@pytest.mark.slow
def test_all_sides_train(tmp_path: Path) -> None:
    settings = {"num_envs": 2, "rollout_length": 3}
    cases = [learners.Case("IMPALA", "make_impala", settings, 1, 1.2), learners.Case("A2C", "make_a2c", settings, 1, 1.2)]
    result = learners.measure(1, 1.0, tmp_path, cases, "envpool:CartPole-v1")
    impala, a2c = result["cases"]
    assert impala["lags"] and "xla, overlap" in impala["seconds"]
    assert not a2c["lags"] and not [name for name in a2c["seconds"] if "overlap" in name]
    assert json.loads((tmp_path / "learners.json").read_text()) == result
    assert "| A2C" in learners.learners_report(result)


@pytest.mark.slow
def test_the_plain_loop_learns_from_the_rows_that_are_steps() -> None:
    """Checked on the rollout that it passes to the algorithm, over ends of episodes."""
    import jaxrl

    agent, seen = jaxrl.make_a2c("envpool:CartPole-v1", num_envs=2, rollout_length=64), list[Any]()

    def update(learner: Any, rollout: Any) -> Any:
        jax.debug.callback(lambda rollout: seen.append(rollout), rollout)
        return agent.algorithm.update(learner, rollout)

    with learners.plain(agent._replace(algorithm=agent.algorithm._replace(update=update))) as side:
        side(1)
        jax.effects_barrier()
    rollout = jax.tree.map(np.asarray, seen[0])
    ended = rollout.terminated | rollout.truncated
    assert ended.any() and (rollout.valid[1:] == ~ended[:-1]).all() and rollout.valid[0].all()
    np.testing.assert_array_equal(rollout.inputs.is_first[1:-1], ~rollout.valid[:-1])
    np.testing.assert_array_equal(rollout.reward, rollout.valid)

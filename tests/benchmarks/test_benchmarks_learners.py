"""The benchmark of learners: its sides learn the same, and its report is correct."""

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


SECONDS = {"stepping": [2.0], "acting": [1.0], "learning": [4.0], "plain": [8.0], "sync": [7.0], "xla, overlap": [5.0]}
RESULT: dict[str, Any] = {
    "command": "python -m benchmarks learners",
    "date": "today",
    "hardware": {"cpu": "a CPU", "cores": 2},
    "versions": {"jax": "1", "envpool": "2"},
    "env": "envpool:Pong-v5",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "lags, processor, bound, met",
    [
        (True, [2.0, 1.0, 4.0], 4.0, "NO"),  # the longest part: 80 %
        (True, [3.0, 1.0, 5.0], 4.5, "yes"),  # half of all work: 90 %
        (False, [2.0, 1.0, 4.0], 2.0 + 4.0, "yes"),  # learning cannot overlap
    ],
)
def test_the_bound_is_of_parts_that_may_overlap(lags: bool, processor: list[float], bound: float, met: str) -> None:
    work = dict(zip(learners.PARTS, ([each] for each in processor), strict=True))
    case = {"name": "PPO", "asked": 1.2, "steps": 640, "lags": lags, "seconds": SECONDS, "processor_seconds": work}
    assert learners.bounds(case, 2) == [bound]
    way, faster, of_bound = learners.reached(case, 2)
    assert (way, faster, of_bound) == ("xla, overlap", 1.6, bound / 5)
    result = {**RESULT, "cases": [case]}
    assert learners.missed(result) == (met == "NO")
    row = next(line for line in learners.learners_report(result).splitlines() if "PPO" in line)
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[4:8] == [f"{1000 * bound:.0f}", "8000", "5000 (xla, overlap)", "1.60 (≥ 1.2)"] and cells[-1] == met

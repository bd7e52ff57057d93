"""The benchmark of samplers: its sides run."""

from __future__ import annotations

from benchmarks import sampling


def test_all_sides_collect() -> None:
    case = sampling.Case("CartPole-v1", 0.85, 3, 3)
    with sampling.raw(case) as rows:
        rows()
    with sampling.sampled(case, "alternating") as collect:
        rollout, _ = collect()
    assert rollout.reward.shape == (1, 3, sampling.NUM_ENVS) and rollout.valid.all()
    assert set(rollout.action.ravel().tolist()) == {0, 1}

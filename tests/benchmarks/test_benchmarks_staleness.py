"""Batches of the staleness benchmark: which members of which version, and fresh batches of all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from benchmarks import staleness
from jaxrl.evolution.gradient import VersionFitness


def test_each_member_is_learnt_from_once() -> None:
    member = jnp.arange(staleness.MEMBERS)
    of = VersionFitness(jax.random.key(0), 0.1, jnp.zeros(3), 0, member, member * 1.0)
    parts = [staleness.part(of._replace(age=age)) for age in range(staleness.AGES + 1)]
    assert [len(each.member) for each in parts] == [32, 8, 8, 8, 8]
    np.testing.assert_array_equal(np.concatenate([each.member for each in parts]), member)
    assert all((each.member == each.fitness).all() and len(each.member) % 2 == 0 for each in parts)


@pytest.mark.slow
def test_corrections_differ_once_there_are_older_members() -> None:
    agent = jaxrl.make_es("Pendulum-v1?max_steps_in_episode=5", normalize_observations=False, model={"hidden_sizes": (4,)})
    curves = {mode: staleness.learn(agent, mode, 2, 3) for mode in staleness.MODES}
    assert all(curve.shape == (2, 3) for curve in curves.values())
    for mode in staleness.CORRECTIONS:
        np.testing.assert_array_equal(curves[mode][:, :2], curves["within"][:, :2])
    assert len({curve[:, 2].tobytes() for mode, curve in curves.items() if mode != "fresh"}) >= 3
    assert (curves["fresh"][:, 1] != curves["within"][:, 1]).all()

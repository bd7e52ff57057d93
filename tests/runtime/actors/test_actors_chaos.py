"""Short run of the script that disturbs workers at random."""

from __future__ import annotations

from functools import partial

import pytest

from jaxrl import remote
from tests.helpers.processes import actor_chaos
from tests.helpers.processes.actor_pools import ray_workers
from tests.helpers.processes.children import soon
from tests.helpers.processes.ray_nodes import joined_nodes


@pytest.mark.chaos
def test_a_training_survives_its_workers() -> None:
    report = actor_chaos.train(12, seed=1)
    assert not report.wrong
    assert report.reward > 0.9 and 0 < report.seams <= 4 * 12


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.expensive(600)
def test_a_training_on_ray_survives_its_workers_and_nodes() -> None:
    with joined_nodes([1, 1, 1]) as nodes:
        with remote.open("ray"):
            report = actor_chaos.train(50, 1, partial(actor_chaos.RayDisturber, nodes), engine="ray", timeout=20.0)
        assert soon(lambda: not ray_workers())
    assert not report.wrong
    assert report.reward > 0.9 and 0 < report.seams <= 4 * 50

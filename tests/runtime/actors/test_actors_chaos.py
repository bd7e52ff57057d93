"""Short run of the script that disturbs workers at random."""

from __future__ import annotations

import pytest

from tests.helpers.processes import actor_chaos


@pytest.mark.chaos
def test_a_training_survives_its_workers() -> None:
    report = actor_chaos.train(12, seed=1)
    assert not report.wrong
    assert report.reward > 0.9 and 0 < report.seams <= 4 * 12

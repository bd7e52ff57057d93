"""Short run of the script that kills a training at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.processes import chaos


@pytest.mark.chaos
def test_a_training_survives_kills_at_random(tmp_path: Path) -> None:
    total_steps = 600_000
    assert chaos.start(tmp_path / "undisturbed", total_steps).wait(600) == 0
    moments = chaos.kill_at_random(tmp_path / "disturbed", total_steps, 6, seed=1, timeout=900)
    assert len(moments) == 6 and any("while saving" in moment for moment in moments)
    assert not chaos.differences(tmp_path / "undisturbed", tmp_path / "disturbed")


def test_differences_are_found(tmp_path: Path) -> None:
    from jaxrl.runtime.checkpoint.store import save

    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        (tmp_path / name).mkdir()
        save(tmp_path / name / "checkpoints", {"x": np.array(value), "y": np.array(0)}, 1)
        (tmp_path / name / "progress.csv").write_text(f"seed,seconds,loss\r\n0,{len(name)},{value}\r\n")
    assert chaos.differences(tmp_path / "a", tmp_path / "b") == []
    assert chaos.differences(tmp_path / "a", tmp_path / "c") == ["['x']", "progress.csv"]

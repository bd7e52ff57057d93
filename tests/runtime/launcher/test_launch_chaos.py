"""Short run of the script that disturbs the processes of a launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.processes import launch_chaos


@pytest.mark.chaos
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_survives_faults_of_its_processes(processes: int, tmp_path: Path) -> None:
    faults = launch_chaos.FAULTS[:8] if processes == 2 else [each for each in launch_chaos.FAULTS if each.endswith("0")]
    done, wrong = launch_chaos.compare(tmp_path, processes, 600_000, faults, timeout=900)
    assert not wrong, done
    assert len(done) == len(faults) and any("while saving" in each for each in done)

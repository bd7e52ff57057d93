"""Devices of several processes learn the same as those of one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.ports import free_port
from tests.helpers.processes.several_processes import AGENTS


def trained(num_processes: int, agent: str) -> list[str]:
    """Return the output of each process."""
    port = free_port()
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.processes.several_processes", port, str(num_processes), str(number), agent],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(num_processes)
    ]
    try:
        printed = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * num_processes
    return [out.splitlines()[-1] for out in printed]


@pytest.mark.parametrize("agent", [name if name == "ppo" else pytest.param(name, marks=pytest.mark.slow) for name in AGENTS])
def test_two_processes_of_one_device_do_what_one_of_two_does(agent: str) -> None:
    (alone,) = trained(1, agent)
    assert trained(2, agent) == [alone, alone]

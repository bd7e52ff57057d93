"""Devices of several processes learn the same as those of one."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def trained(num_processes: int, rule: str) -> list[str]:
    """Return the output of each process."""
    port = free_port()
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.processes.several_processes", port, str(num_processes), str(number), rule],
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


@pytest.mark.parametrize("rule", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_two_processes_of_one_device_do_what_one_of_two_does(rule: str) -> None:
    (alone,) = trained(1, rule)
    assert trained(2, rule) == [alone, alone]

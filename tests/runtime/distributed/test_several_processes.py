"""Devices of several processes learn the same as those of one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl.runtime.actors import several_processes
from tests.helpers.agents import small
from tests.helpers.hosted import hosted
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


def test_the_second_process_acts_for_its_own_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four environments with three agents it has the last two, whose lanes are 6 to 11."""
    monkeypatch.setattr(several_processes, "current", lambda: SimpleNamespace(process_id=1, num_processes=2))
    agent = small("ppo", hosted(jaxrl.make_env("jaxrl:Spread")), num_envs=4)
    acted: list[Any] = []
    agent = agent._replace(algorithm=agent.algorithm._replace(act=lambda *arguments, explore: acted.append(arguments[3])))
    part = several_processes.sharing(agent)
    part.algorithm.act(None, (), None, jnp.arange(part.num_lanes), None, explore=True)  # type: ignore[arg-type]
    assert part.num_envs == 2 and acted[0].tolist() == [6, 7, 8, 9, 10, 11]

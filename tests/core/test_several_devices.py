"""An agent collects and learns the same on 1, 2 and 4 devices."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.agents import slow_unless
from tests.helpers.paths import ROOT
from tests.helpers.processes.several_devices import DEVICES, SETTINGS


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, np.ndarray]]:
    """Return the results of ``tests.helpers.processes.several_devices`` by the number of devices."""
    path = tmp_path_factory.mktemp("devices") / "found.npz"
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": "4"}
    command = [sys.executable, "-m", "tests.helpers.processes.several_devices", request.param, str(path)]
    subprocess.run(command, cwd=ROOT, env=environment, timeout=300, check=True)
    with np.load(path) as arrays:
        listed = {name.partition("/")[::2]: arrays[name] for name in arrays.files}
    return {number: {name: x for (which, name), x in listed.items() if which == str(number)} for number in DEVICES}


each_algorithm = pytest.mark.parametrize(
    "found", [pytest.param(name, marks=slow_unless(name == "ppo")) for name in SETTINGS], indirect=True
)


@pytest.mark.slow
@each_algorithm
def test_rollouts_are_the_same(found: dict[int, dict[str, np.ndarray]]) -> None:
    """Complete rollouts: actions, ends and counts are equal, floats up to rounding, in three iterations, in this order."""
    names = [name for name in found[1] if name.startswith("rollout ")]
    assert {"rollout 2['action']", "rollout 2['env_id']", "rollout 0['inputs'].obs"} <= set(names)
    assert found[1]["rollout 2['env_id']"].tolist() == [0, 1, 2, 3] and len(np.unique(found[1]["rollout 2['action']"])) == 2
    for number in DEVICES[1:]:
        for name in names:
            one, several = found[1][name], found[number][name]
            tolerance = 1e-5 if np.issubdtype(one.dtype, np.floating) else 0
            np.testing.assert_allclose(several, one, rtol=tolerance, atol=tolerance, err_msg=f"{number} devices: {name}")


@each_algorithm
def test_parameters_are_the_same(found: dict[int, dict[str, np.ndarray]]) -> None:
    """After three iterations with one minibatch, or with batches of all rows in replay.

    Several devices draw other rows than one, so the test avoids draws. The gradient's norm is not clipped.
    """
    names = [name for name in found[1] if name.startswith("params")]
    assert len(names) > 3 and found[1]["norm"] > 0
    for number in DEVICES[1:]:
        for name in names:
            np.testing.assert_allclose(found[number][name], found[1][name], rtol=0, atol=1e-5, err_msg=f"{number}: {name}")
        np.testing.assert_allclose(found[number]["norm"], found[1]["norm"], rtol=1e-4)

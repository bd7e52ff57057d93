"""A run with workers on several hosts over a slow link. If a link is cut it goes on, or ends saved and names the host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes.children import soon
from tests.helpers.processes.network import Host, why_not
from tests.helpers.processes.ray_hosts import QUICK_HEALTH, RayHosts, ray_hosts

pytestmark = [pytest.mark.ray, pytest.mark.expensive(200)]

ITERATIONS, ROWS = 150, 6 * 16


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayHosts]:
    """A head without CPUs, where the learner is, four nodes with a CPU each, and a host that has not joined them."""
    if reason := why_not():
        pytest.skip(reason)
    with ray_hosts("head", "one", "two", "three", "four", "later") as hosts:
        hosts.start(hosts.head, "--num-cpus=0", variables=QUICK_HEALTH)
        for host in hosts.hosts[1:-1]:
            hosts.start(host, "--num-cpus=1")
        hosts.net.slow(0.02, 12.5e6)
        yield hosts


cut: list[Host] = []
"""Hosts whose links are cut."""


def train(cluster: RayHosts, out: Path, num_workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "jaxrl", "train", "ppo", "--env", "gymnasium:CartPole-v1", "--out", str(out)]
    command += ["--num-envs", "6", "--rollout-length", "16", "--total-steps", str(ITERATIONS * ROWS), "--eval-every", "0"]
    command += ["--engine", "ray", "--placement", "spread", "--num-workers", str(num_workers), "--chunk-iterations", "2"]
    limited = ["timeout", "--signal=KILL", "280", *command]
    variables = {**cluster.variables, "RAY_ADDRESS": cluster.address}
    return cluster.head.popen(*limited, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def cut_one(cluster: RayHosts, out: Path, process: subprocess.Popen[str]) -> Host:
    """Cut the link of a host with a worker, while the run collects rollouts."""
    progress = out / "progress.csv"
    assert soon(lambda: process.poll() is not None or (progress.exists() and progress.read_text().count("\n") > 4), 200)
    assert process.poll() is None, process.communicate()[0]
    host = next(host for host in cluster.hosts[1:] if host not in cut and host.processes("ray::RayHolder"))
    cut.append(host)
    cluster.net.cut(host)
    return host


def test_a_run_goes_on_or_ends_saved(cluster: RayHosts, tmp_path: Path) -> None:
    """With a node to spare the worker is replaced there. Without one the run ends after a minute, and resumes when there is one.

    A host that was cut off does not come back here: Ray tries connections that have failed only after a while.
    """
    out = tmp_path / "spare"
    process = train(cluster, out, 2)
    host = cut_one(cluster, out, process)
    said = process.communicate(timeout=280)[0]
    assert process.returncode == 0 and f"done at step {ITERATIONS * ROWS:,}" in said
    assert f"was lost (its node {host.address} has died" in said and "replaced (restart 1 of 10)" in said

    out = tmp_path / "full"
    process = train(cluster, out, 3)
    host = cut_one(cluster, out, process)
    said = process.communicate(timeout=280)[0]
    assert process.returncode == 1 and f"was lost (its node {host.address} has died" in said
    assert "has no place (RayActor 3 asks for 1 CPU" in said and list((out / "checkpoints").iterdir())
    cluster.start(cluster.hosts[-1], "--num-cpus=1")
    process = train(cluster, out, 3)
    said = process.communicate(timeout=280)[0]
    assert process.returncode == 0 and "resumed at step" in said and f"done at step {ITERATIONS * ROWS:,}" in said

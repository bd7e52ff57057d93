"""``jaxrl doctor --ray`` on a cluster of several hosts with a fault at each hop. It must name the hop, and end by itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes.children import soon
from tests.helpers.processes.network import Host, why_not
from tests.helpers.processes.ray_hosts import OBJECTS, RAYLET, WORKERS, RayHosts, ray_hosts

pytestmark = [pytest.mark.ray, pytest.mark.expensive(150)]

OTHER_VERSION = "import jaxrl.version; jaxrl.version.__version__ = '0.0.1'"
WRONG_CLOCK = "import time; right = time.time; time.time = lambda: right() + 90"
OTHER_RAY = "import ray; ray.__version__ = '2.59.9'"

Findings = list[dict[str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayHosts]:
    """A head, a node, and a host that Ray does not run on."""
    if reason := why_not():
        pytest.skip(reason)
    with ray_hosts("head", "node", "outside") as hosts:
        (hosts.folder / "shared").mkdir()
        for host in hosts.hosts[:2]:
            hosts.start(host)
        yield hosts


def doctor(cluster: RayHosts, host: Host, *flags: str, address: str = "", **variables: str) -> Findings:
    """Run the command on a host. Return its findings, and check its end."""
    command = ["-P", "-m", "jaxrl", "doctor", "--json", "--ray", address or cluster.address, *flags]
    done = cluster.python(host, *command, **variables)
    assert done.stderr == ""
    assert not host.processes("jaxrl") and soon(lambda: not any(each.processes("Visitor") for each in cluster.hosts))
    report = json.loads(done.stdout)
    found: Findings = report["checks"]
    broken = [finding for finding in found if finding["level"] == "problem"]
    assert done.returncode == bool(broken) == (not report["healthy"])
    assert all(finding["group"] == "Ray cluster" and finding["breaks"] and finding["fix"] for finding in broken)
    return found


def named(found: Findings, level: str = "problem") -> dict[str, str]:
    return {finding["check"]: finding["found"] for finding in found if finding["level"] == level}


def test_a_cluster_without_faults_over_a_slow_link(cluster: RayHosts) -> None:
    """20 ms in each direction, and 100 Mbit/s."""
    cluster.net.slow(0.02, 12.5e6)
    try:
        found = doctor(cluster, cluster.head, "--shared", str(cluster.folder / "shared"))
    finally:
        cluster.net.slow(0.0, 1e12)
    fine = named(found, "ok")
    assert len(fine) == len(found) == 8
    assert "this machine" in fine["node 10.99.0.1 (head)"] and "the shared folder is shared" in fine["node 10.99.0.1 (head)"]
    assert "MiB per second from there, clock +0.0" in fine["node 10.99.0.2 (node)"].replace("-0.0", "+0.0")
    assert not os.listdir(cluster.folder / "shared")


def test_an_address_without_a_cluster(cluster: RayHosts) -> None:
    outside = cluster.hosts[2]
    found = doctor(cluster, cluster.head, address=f"{outside.address}:6379")
    assert named(found) == {"GCS port": "10.99.0.3:6379 refuses connections: no head of Ray listens there"}
    assert "skipped" in named(found, "note")["further hops"]


def test_a_host_whose_link_is_down(cluster: RayHosts) -> None:
    outside = cluster.hosts[2]
    cluster.net.cut(cluster.head)
    try:
        found = named(doctor(cluster, outside))
    finally:
        cluster.net.mend(cluster.head)
    assert found.keys() == {"GCS port"}
    assert "does not answer within 5 s" in found["GCS port"] or "cannot be reached" in found["GCS port"]


def test_a_machine_without_a_node(cluster: RayHosts) -> None:
    assert "no process of Ray runs on this machine" in named(doctor(cluster, cluster.hosts[2]))["joining"]


@pytest.mark.parametrize(
    "variables", [{"RAY_AUTH_TOKEN": "1" * 64}, {"RAY_AUTH_TOKEN_PATH": "/proc/none"}], ids=["other", "none"]
)
def test_a_wrong_token(cluster: RayHosts, variables: dict[str, str]) -> None:
    found = doctor(cluster, cluster.head, **variables)
    assert f"the cluster at {cluster.address} refuses this process's token" in named(found)["token"]


def test_a_cluster_without_a_token() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with ray_hosts("open") as hosts:
        hosts.start(hosts.head, variables={"RAY_AUTH_MODE": "disabled"})
        assert "asks for no token: anyone" in named(doctor(hosts, hosts.head))["token"]


def test_another_ray_here(cluster: RayHosts, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(OTHER_RAY)
    path = os.pathsep.join([str(tmp_path), cluster.variables["PYTHONPATH"]])
    found = named(doctor(cluster, cluster.head, PYTHONPATH=path))["version of Ray"]
    assert found.startswith(f"the cluster at {cluster.address} has Ray 2.") and found.endswith(", and this process 2.59.9")


@contextmanager
def blocked(cluster: RayHosts, source: int, target: int, *ports: int) -> Iterator[None]:
    cluster.net.block(cluster.hosts[source], cluster.hosts[target], *ports)
    try:
        yield
    finally:
        cluster.net.unblock()


@pytest.mark.parametrize(
    ("source", "target", "ports", "said"),
    [
        (0, 1, [OBJECTS], f"the port of its object manager, 10.99.0.2:{OBJECTS}, does not answer within 5 s, asked from here"),
        (1, 0, [RAYLET], f"the port of this machine's raylet, 10.99.0.1:{RAYLET}, does not answer within 5 s, asked from there"),
        (0, 1, WORKERS, "its ports answer, but no process there did its task (no answer in 30 s)"),
    ],
    ids=["there", "back", "workers"],
)
def test_ports_that_are_blocked_in_one_direction(
    cluster: RayHosts, source: int, target: int, ports: list[int], said: str
) -> None:
    with blocked(cluster, source, target, *ports):
        found = named(doctor(cluster, cluster.head))
    assert found.keys() == {"node 10.99.0.2 (node)"} and said in found["node 10.99.0.2 (node)"]


def test_a_node_that_is_stopped_and_then_killed(cluster: RayHosts) -> None:
    """Ray takes up to 55 s to notice that it is stopped: until then the system accepts connections in its place."""
    node = cluster.hosts[1]
    os.kill(raylet := cluster.raylet(node), signal.SIGSTOP)
    try:
        found = named(doctor(cluster, cluster.head))
    finally:
        os.kill(raylet, signal.SIGCONT)
    assert "accepts connections, but its process does not answer within 5 s" in found["node 10.99.0.2 (node)"]
    os.kill(raylet, signal.SIGKILL)
    lost = "the cluster has lost it: "
    assert soon(lambda: lost in named(doctor(cluster, cluster.head)).get("node 10.99.0.2 (node)", ""))


def test_nodes_with_faults_of_their_own() -> None:
    """Each with another one, in one cluster: the command names each node with its fault, and none for the head."""
    if reason := why_not():
        pytest.skip(reason)
    names = {"old": OTHER_VERSION, "late": WRONG_CLOCK, "apart": "", "small": ""}
    with ray_hosts("head", *names) as hosts:
        shared = hosts.folder / "shared"
        shared.mkdir()
        _, _, _, apart, small = hosts.hosts
        apart.mount(shared, 10)
        small.mount("/dev/shm", 64)
        for host in hosts.hosts:
            hosts.start(host, code=names.get(host.name, ""))
        found = doctor(hosts, hosts.head, "--shared", str(shared))
        broken, notes, fine = (said_of_hosts(found, level) for level in ("problem", "note", "ok"))
        assert broken.keys() == {"old", "late", "apart"} and notes.keys() == {"small"} and fine.keys() == {"head", "small"}
        assert "it has other versions: jaxrl " in broken["old"] and " here and 0.0.1 there" in broken["old"]
        assert broken["late"] == "its clock is 90 s ahead of this machine's"
        assert f"a file written here to {shared} cannot be read there: No such file" in broken["apart"]
        assert f"its object store of 95.4 MiB is in {hosts.local}/ray, as /dev/shm has 64.0 MiB" in notes["small"]
        assert not os.listdir(shared)


def said_of_hosts(found: Findings, level: str) -> dict[str, Any]:
    """Return what was found on nodes, by the names of their hosts."""
    return {check.rpartition("(")[2].rstrip(")"): text for check, text in named(found, level).items() if check.startswith("node")}

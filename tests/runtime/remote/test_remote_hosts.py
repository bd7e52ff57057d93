"""Remote objects on several hosts over a slow link: what a call does if the link is cut, and what is left then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxrl.runtime.remote.ray.worker import cause_of
from tests.helpers.processes.children import soon
from tests.helpers.processes.network import Host, why_not
from tests.helpers.processes.ray_hosts import QUICK_HEALTH, RayHosts, ray_hosts


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayHosts]:
    """A head without CPUs, so that objects are on the two nodes."""
    if reason := why_not():
        pytest.skip(reason)
    with ray_hosts("head", "one", "two") as hosts:
        hosts.start(hosts.head, "--num-cpus=0", variables=QUICK_HEALTH)
        for host in hosts.hosts[1:]:
            hosts.start(host, "--num-cpus=1")
        hosts.net.slow(0.02, 12.5e6)
        yield hosts


def use(cluster: RayHosts, restarts: int, disturb: Callable[[Host], None]) -> list[dict[str, Any]]:
    """Run ``remote_client`` on the head, and disturb the host of its object during a call. Return what it prints."""
    command = [sys.executable, "-P", "-m", "tests.helpers.processes.remote_client", cluster.address, str(restarts)]
    limited = ["timeout", "--signal=KILL", "150", *command]
    client = cluster.head.popen(*limited, env=cluster.variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    said = list[dict[str, Any]]()
    assert client.stdout
    for line in client.stdout:
        if line.startswith("{"):  # other lines are messages of Ray's raylet
            said.append(json.loads(line))
        if said and said[-1].pop("waiting", False):
            disturb(next(host for host in cluster.hosts if host.name == said[0]["host"]))
    assert client.wait() == 0 and said[0]["counts"] == [1, 2, 3, 4, 5] and said[0]["total"] == 10**6
    assert said.pop() == {"closed": True}
    return [each for each in said[1:] if each]


@pytest.mark.ray
@pytest.mark.expensive(60)
def test_a_link_that_is_cut_during_a_call(cluster: RayHosts) -> None:
    """20 ms in each direction, 100 Mbit/s. The call in progress and those behind it fail: each with the host that was lost."""
    cut = list[Host]()

    def disturb(host: Host) -> None:
        cluster.net.cut(host)
        cut.append(host)

    lost, behind = use(cluster, 0, disturb)
    (host,) = cut
    expected = f"the worker of Counter 0 was lost (its node {host.address} has died: health check failed due to missing too many "
    for error in (lost, behind):
        assert error["error"] == "WorkerLost" and error["text"].startswith(expected) and error["text"].endswith("during slow_add")
        assert error["seconds"] < 50  # without the head's settings it may take 55
    cluster.net.mend(host)
    assert soon(lambda: not any(each.processes("Holder") or each.processes("jaxrl") for each in cluster.hosts))

    # The other node is left: an object that may be made again is made there, as soon as the first one is back.
    assert soon(lambda: not host.processes("/raylet/raylet\0"))
    cluster.start(host, "--num-cpus=1")
    note, lost, behind, place = use(cluster, 1, disturb)
    host = cut[-1]
    assert f"its node {host.address} has died" in note["note"] and note["note"].endswith("; replaced (restart 1 of 1)")
    assert lost["error"] == "WorkerLost" and (behind["error"], behind["result"]) == ("NoneType", 1)
    assert place["host"] in {"one", "two"} - {host.name}
    cluster.net.mend(host)
    assert soon(lambda: not any(each.processes("Holder") or each.processes("jaxrl") for each in cluster.hosts))


@pytest.mark.ray
@pytest.mark.expensive(30)
def test_a_node_that_is_stopped_during_a_call(cluster: RayHosts) -> None:
    """Its connections stay open, and the system of its host accepts new ones."""
    stopped = list[int]()

    def disturb(host: Host) -> None:
        stopped.append(cluster.raylet(host))
        os.kill(stopped[0], signal.SIGSTOP)

    try:
        lost, behind = use(cluster, 0, disturb)
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    for error in (lost, behind):
        assert error["error"] == "WorkerLost" and "(its node 10.99.0." in error["text"] and error["seconds"] < 50
    assert soon(lambda: not any(each.processes("Holder") or each.processes("jaxrl") for each in cluster.hosts))


DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: RayHolder
\tpid: 117
\tip: 10.99.0.2
"""
NODE_DIED = "The actor died because its node has died. Node Id: 3e9d"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            f"{DIED}{NODE_DIED}\n\tthe actor's node was terminated unexpectedly: health check",
            "its node 10.99.0.2 has died: health check",
        ),
        (f"{DIED}{NODE_DIED}", "its node 10.99.0.2 has died"),
        (f"{DIED}The actor is dead because its worker process has died. Worker exit", "process 117 on 10.99.0.2 has died"),
        (DIED, "The actor died unexpectedly before finishing this task, on 10.99.0.2"),
        ("\nThe actor is unavailable.\nMore", "The actor is unavailable"),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_of_a_loss_in_one_line(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause

"""A cluster of Ray with several nodes on this machine's loopback interface, in another process, for tests.

The nodes share the machine, but each has its own raylet, object store and CPUs: to Ray, and so to jaxrl, they are machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.paths import ROOT

HEALTH = {"health_check_timeout_ms": "2000", "health_check_period_ms": "1000", "health_check_failure_threshold": "3"}
"""Settings of the head with which a node that does not answer is given up after some seconds; see docs/howto/remote.md."""

MAIN = """
import json, sys, threading, time
from ray.cluster_utils import Cluster
sizes = json.loads(sys.argv[1])
common = dict(node_ip_address="127.0.0.1", object_store_memory=100 * 2**20)
cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=sizes[0], include_dashboard=False, **common))
nodes = [cluster.head_node, *(cluster.add_node(num_cpus=size, **common) for size in sizes[1:])]
def raylet(node):
    return node.all_processes["raylet"][0].process.pid
def reap():  # workers go on while their raylet is a zombie
    while True:
        time.sleep(0.1)
        for node in [*nodes]:
            node.all_processes["raylet"][0].process.poll()
threading.Thread(target=reap, daemon=True).start()
print(json.dumps([cluster.address, [*map(raylet, nodes)]]), flush=True)
for line in sys.stdin:
    if line.strip() == "add":
        nodes.append(cluster.add_node(num_cpus=sizes[-1], **common))
        print(json.dumps(raylet(nodes[-1])), flush=True)
"""


class Nodes:
    """The cluster."""

    def __init__(self, sizes: list[int]) -> None:
        """Start nodes with these numbers of CPUs. Their token is that of the session: see ``tests/conftest.py``."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token"}
        environment |= {f"RAY_{name}": value for name, value in HEALTH.items()}
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAIN, json.dumps(sizes)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )
        self.address, self.raylets = self._answer()
        """Address to join, and the process of each node."""

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def add(self) -> None:
        """Add a node of the size of the last one."""
        assert self._process.stdin is not None
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        self.raylets.append(self._answer())

    def signal(self, node: int, number: signal.Signals) -> None:
        """Send a signal to a node's raylet: SIGKILL is the loss of a machine, SIGSTOP that of its network."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.raylets[node], number)

    def close(self) -> None:
        """End all nodes, stopped ones included."""
        for raylet in self.raylets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(raylet, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


@contextlib.contextmanager
def joined_nodes(sizes: list[int]) -> Iterator[Nodes]:
    """Start nodes, and set the variable with which this process joins them."""
    nodes = Nodes(sizes)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", nodes.address)
            yield nodes
    finally:
        nodes.close()

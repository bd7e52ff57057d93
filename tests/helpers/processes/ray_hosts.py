"""Ray on the hosts of ``network.py``: a cluster whose nodes have their own addresses, processes and folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers.paths import ROOT
from tests.helpers.processes.children import soon
from tests.helpers.processes.network import Host, Network, network
from tests.helpers.processes.ray_nodes import HEALTH

RAY = (sys.executable, "-m", "ray.scripts.scripts")

GCS, RAYLET, OBJECTS, WORKERS = 6379, 8077, 8076, range(10002, 10100)
"""Ports of the head, and of each node."""

QUICK_HEALTH = {f"RAY_{name}": value for name, value in HEALTH.items()}
"""Settings of the head with which a node that hangs is noticed in seconds."""


class RayHosts:
    """Hosts, and what starts Ray on them. All commands have the token of the cluster."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.net, self.hosts, self.folder = net, net.hosts, folder
        self.head, self.address = self.hosts[0], f"{self.hosts[0].address}:{GCS}"
        self.local, token = folder / "local", folder / "token"
        self.local.mkdir()
        token.write_text("0" * 64)
        for host in self.hosts:
            host.mount(self.local, 64)  # Ray's sockets and logs, which real machines do not share either
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.local),
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
        }

    def start(
        self, host: Host, *options: str, address: str = "", variables: Mapping[str, str] | None = None, code: str = ""
    ) -> None:
        """Start a node of Ray on a host, which is the head if it is the first one, or if ``address`` is "head".

        Args:
          options: options of ``ray start``.
          variables: variables of its environment.
          code: Python that is executed first in each of its processes.
        """
        is_head = host is self.head or address == "head"
        role = ["--head", f"--port={GCS}", "--include-dashboard=false"] if is_head else [f"--address={self.address}"]
        ports = [f"--node-manager-port={RAYLET}", f"--object-manager-port={OBJECTS}"]
        ports += [f"--min-worker-port={WORKERS[0]}", f"--max-worker-port={WORKERS[-1]}"]
        size = ["--num-cpus=2", "--object-store-memory=100000000"]
        environment = {**self.variables, **(variables or {})}
        if code:
            (self.folder / host.name).mkdir()
            (self.folder / host.name / "sitecustomize.py").write_text(code)
            environment["PYTHONPATH"] = os.pathsep.join([str(self.folder / host.name), str(ROOT)])
        command = [*RAY, "start", *role, f"--node-ip-address={host.address}", *ports, *size, *options, "--block"]
        path = self.folder / f"{host.name}.log"
        with path.open("w") as log:
            host.popen(*command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert soon(lambda: "Ray runtime started" in path.read_text(), 120), path.read_text()

    def python(self, host: Host, *arguments: str, timeout: float = 240, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python on a host."""
        return host.run(sys.executable, *arguments, timeout=timeout, env={**self.variables, **variables})

    def raylet(self, host: Host) -> int:
        """Return the process of a node."""
        (pid,) = host.processes("/raylet/raylet\0")
        return pid


@contextmanager
def ray_hosts(*names: str) -> Iterator[RayHosts]:
    """Make hosts of these names. Nothing of Ray is started.

    Their folder has a short name, for those of sockets are limited to 107 bytes.
    """
    with TemporaryDirectory(prefix="jrl-", dir="/tmp") as folder, network(*names) as net:
        yield RayHosts(net, Path(folder))

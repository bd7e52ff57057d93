"""Main program of the process that joins a cluster of Ray and visits its nodes. It prints one JSON object per line.

A separate process, for it may hang or crash, and Ray reads some variables when it is imported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from jaxrl.envs.host import one_line
from jaxrl.envs.subprocess.descendants import PROCESSES
from jaxrl.runtime.doctor.ray import ports, visitor
from jaxrl.runtime.remote.ray.connect import ANSWER, NoToken, OtherVersion, check_token, set_variables

VISIT = 30.0
"""Seconds that the nodes may take to start a process each, and to look around."""

MEASURE = 40.0
"""Seconds for the clocks and the transfers of all nodes."""

SHARED = 20.0
"""Seconds for the files that nodes read and write."""

LIMIT = 180.0
"""Seconds after which this process is ended. Larger than the sum of its parts."""

LEAVE = 15
"""Seconds that leaving the cluster may take."""

SIZE = 2**22
"""Bytes that are moved from each node to here."""

RAYLET = "--gcs-address="
"""Flag of Ray's process of a node: the cluster that it belongs to."""

KINDS = {NoToken: "no token", PermissionError: "wrong token", OtherVersion: "other version"}
"""Names of errors, for the process that prints the findings: it imports as little as possible."""

Facts = dict[str, Any]


def examine(address: str, shared: str) -> Iterator[Facts]:
    """Yield what is found at each hop, up to the first that fails."""
    set_variables(address)
    os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", f"{ANSWER:.0f}")  # to find the node on this machine: 60
    try:
        check_token(address, False, note=lambda text: None)
    except (ConnectionError, PermissionError) as error:
        yield {"refused": KINDS.get(type(error), "no answer"), "reason": str(error)}
        return
    yield {"clusters here": (here := clusters_here())}
    if not here:  # Ray would look for one for a long time
        return
    import ray

    try:
        ray.init(address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
    except Exception as error:
        yield {"join error": one_line(error)[:300]}
        return
    try:
        yield {"joined": True}
        yield from visit(ray, address, shared)
    finally:
        signal.alarm(LEAVE)
        ray.shutdown()


def clusters_here() -> list[str]:
    """Return the addresses of the clusters that have a node on this machine."""
    found = set[str]()
    for folder in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if command[0].endswith("/raylet"):
                found |= {word.removeprefix(RAYLET) for word in command if word.startswith(RAYLET)}
    return sorted(found)


def visit(ray: Any, address: str, shared: str) -> Iterator[Facts]:
    """Yield the facts of all nodes, more after each step."""
    for module in (ports, visitor):
        ray.cloudpickle.register_pickle_by_value(module)
    nodes, me = [describe(each) for each in ray.nodes()], ray.get_runtime_context().get_node_id()
    here = next(node for node in nodes if node["id"] == me)
    visits = Visits(ray, [node for node in nodes if node["alive"]])
    yield {"nodes": nodes, "here": here}
    visits.try_ports()
    yield {"nodes": nodes}
    visits.look([*ports_of(here), ports.split_address(address)])
    yield {"nodes": nodes}
    visits.measure(me)
    yield {"nodes": nodes}
    if shared:
        visits.share(shared)
    yield {"nodes": nodes, "complete": True}


def describe(node: Facts) -> Facts:
    """Return what Ray knows of a node."""
    return {
        "id": node["NodeID"],
        "alive": node["Alive"],
        "address": node["NodeManagerAddress"],
        "host": node["NodeManagerHostname"],
        "raylet": node["NodeManagerPort"],
        "objects": node["ObjectManagerPort"],
        "death": [node.get("DeathReason"), one_line(node.get("DeathReasonMessage", ""))[:200]],
        "store size": node["Resources"].get("object_store_memory", 0),
    }


def ports_of(node: Facts) -> list[tuple[str, int]]:
    return [(node["address"], node["raylet"]), (node["address"], node["objects"])]


class Visits:
    """Visits of all nodes, each by an actor that runs there and nowhere else. Facts are added to those of the nodes.

    Each step is for the nodes that the steps before found no fault in.
    """

    def __init__(self, ray: Any, nodes: list[Facts]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.ray, self.nodes = ray, nodes
        # Without CPUs, so that it also finds a place on a node that is busy.
        remote = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(visitor.Visitor)
        self.actors = {
            node["id"]: remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["id"], soft=False)).remote()
            for node in nodes
        }

    def try_ports(self) -> None:
        """Try the ports of each node from here."""
        tried = ports.faults_of([port for node in self.nodes for port in ports_of(node)])
        for node, *faults in zip(self.nodes, tried[::2], tried[1::2], strict=True):
            node["faults"] = faults
        self.nodes = [node for node in self.nodes if not any(node["faults"])]

    def look(self, backwards: list[tuple[str, int]]) -> None:
        """Look around on each node, and try these ports from there."""
        self.ask(self.nodes, VISIT, "look", "look error", lambda actor, node: actor.look.remote(backwards))
        self.nodes = [node for node in self.nodes if "look" in node and not any(node["look"]["faults"])]

    def ask(self, nodes: list[Facts], seconds: float, name: str, error_name: str, call: Callable[[Any, Facts], Any]) -> None:
        """Call the actors of all nodes at the same time. Add the result of each to its facts by ``name``, or the error."""
        asked = [(node, call(self.actors[node["id"]], node)) for node in nodes]
        deadline = time.monotonic() + seconds
        for node, reference in asked:
            try:
                node[name] = self.ray.get(reference, timeout=max(0.1, deadline - time.monotonic()))
            except self.ray.exceptions.GetTimeoutError:
                node[error_name] = f"no answer in {seconds:g} s"
            except Exception as error:
                node[error_name] = one_line(error)[:300]

    def measure(self, me: str) -> None:
        """Measure clocks and transfers, one node after the other, so that they do not disturb each other."""
        deadline = time.monotonic() + MEASURE
        for node in self.nodes:
            actor, left = self.actors[node["id"]], deadline - time.monotonic()
            try:
                node["clock"] = min((self.clock(actor, left) for _ in range(3)), key=lambda found: found[1])
                if node["id"] != me:
                    node["rate"] = self.rate(actor, left)
            except Exception as error:
                node["measure error"] = one_line(error)[:300]

    def clock(self, actor: Any, seconds: float) -> tuple[float, float]:
        """Return by how many seconds its clock is ahead of ours, and how far off that may be: by half of the round trip."""
        before, start = time.time(), time.monotonic()
        there = self.ray.get(actor.clock.remote(), timeout=max(0.1, seconds))
        half = (time.monotonic() - start) / 2
        return there - before - half, half

    def rate(self, actor: Any, seconds: float) -> float:
        """Return the bytes per second at which a value comes here from the object store of its node."""
        deadline, seconds_of_each = time.monotonic() + seconds, list[float]()
        for _ in range(2):  # the first one opens the connections
            value = actor.block.remote(SIZE)
            self.ray.wait([value], timeout=max(0.1, deadline - time.monotonic()), fetch_local=False)  # computed, and still there
            start = time.monotonic()
            self.ray.get(value, timeout=max(0.1, deadline - time.monotonic()))
            seconds_of_each.append(time.monotonic() - start)
        return SIZE / min(seconds_of_each)

    def share(self, shared: str) -> None:
        """Let each node read a file that is written here, and read here what each node writes."""
        text = os.urandom(8).hex()
        with tempfile.TemporaryDirectory(prefix=".jaxrl-doctor-", dir=shared, ignore_cleanup_errors=True) as folder:
            ours = os.path.join(folder, "here")
            with open(ours, "w") as file:
                file.write(text)
            os.chmod(folder, 0o777)  # the nodes may belong to another user
            there = {node["id"]: os.path.join(folder, node["id"]) for node in self.nodes}
            self.ask(self.nodes, SHARED, "read", "shared error", lambda actor, _: actor.read.remote(ours, text))
            seeing = [node for node in self.nodes if node.get("read") == ""]
            self.ask(seeing, SHARED, "write", "shared error", lambda actor, node: actor.write.remote(there[node["id"]], text))
            deadline = time.monotonic() + visitor.PATIENCE
            for node in seeing:
                if node.get("write") == "":
                    node["seen"] = visitor.read(there[node["id"]], text, deadline)


def main(address: str, shared: str) -> None:
    """Print the facts. Output of libraries is redirected to stderr."""
    signal.alarm(int(LIMIT))
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for facts in examine(address, shared):
        print(json.dumps(facts), file=results, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

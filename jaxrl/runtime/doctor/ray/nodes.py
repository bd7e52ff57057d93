"""Findings of the nodes of a cluster, from what visits have found out (``driver``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jaxrl.runtime.doctor.finding import CLUSTER, Finding
from jaxrl.runtime.doctor.ray.ports import NO_ANSWER, REFUSED, SILENT, TEXTS, UNREACHABLE
from jaxrl.runtime.remote.versions import difference, full_versions, short_versions
from jaxrl.runtime.system.memory import show_bytes

SKEW, WRONG = 1.0, 60.0
"""Difference of two clocks in seconds: worth a note, and a problem."""

DIED = 2
"""Ray's reason of a node's end: it was not asked to."""

RANGE = "10002–19999"
"""Ports of Ray's worker processes, unless ray start names others."""

RUNS = "objects there: calls fail or hang"

Facts = dict[str, Any]


def check_nodes(nodes: Iterable[Facts], here: Facts, gcs: str, ray_version: str, shared: str) -> Iterator[Finding]:
    """Check each node: one problem at most, at the first hop that fails, and notes."""
    nodes = [*nodes]
    places = {node["address"] for node in nodes if node["alive"]}
    for node in nodes:
        if node["alive"]:
            yield from check_node(node, here, gcs, ray_version, shared)
        elif node["death"][0] == DIED and node["address"] not in places:
            why = f"the cluster has lost it: {node['death'][1].rstrip('.') or 'it died'}"
            yield problem(node, why, RUNS, f"ray start --address={gcs} on {node['address']}, after a look at its raylet.out")


def check_node(node: Facts, here: Facts, gcs: str, ray_version: str, shared: str) -> Iterator[Finding]:
    """Check one node that Ray counts as alive."""
    for check in (check_ports, check_visit, check_versions, check_way_back, check_transfer, check_shared, check_clock):
        fault = check(node, here, gcs, ray_version, shared)
        if fault is not None:
            yield fault
            return
    versions = node["look"]["versions"]
    said = [f"Python {versions['Python']}, jaxrl {versions['jaxrl']}"]
    if node["id"] == here["id"]:
        said = ["this machine", *said]
    if "rate" in node:
        said.append(f"{show_bytes(int(node['rate']))} per second from there")
    offset, error = node["clock"]
    said.append(f"clock {offset:+.2f} ± {error:.2f} s")
    if shared:
        said.append("the shared folder is shared")
    yield Finding(CLUSTER, name_of(node), "ok", ", ".join(said))
    yield from notes(node)


def notes(node: Facts) -> Iterator[Finding]:
    """Yield what works, and could be better."""
    look, store = node["look"], node["store size"]
    ours = full_versions()
    if unequal := difference({name: ours[name] for name in ours.keys() - short_versions().keys()}, look["versions"]):
        yield Finding(CLUSTER, name_of(node), "note", f"other versions: {unequal}")
    offset, error = node["clock"]
    if abs(offset) - error > SKEW:
        found = f"its clock is {abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}: times in logs do not compare"
        yield Finding(CLUSTER, name_of(node), "note", f"{found}; better: timedatectl set-ntp true there")
    if look["store"] not in (None, "/dev/shm"):
        found = f"its object store of {show_bytes(int(store))} is in {look['store']}, as /dev/shm has {show_bytes(look['shm'])}"
        yield Finding(CLUSTER, name_of(node), "note", f"{found}: slow; faster: docker run --shm-size={int(store * 1.1) >> 20}m")


def check_ports(node: Facts, here: Facts, gcs: str, *_: Any) -> Finding | None:
    """Check the way from here to the ports of a node."""
    for what, port, fault in zip(("raylet", "object manager"), (node["raylet"], node["objects"]), node["faults"], strict=True):
        if fault:
            found = f"the port of its {what}, {node['address']}:{port}, {TEXTS[fault]}, asked from here ({here['address']})"
            return problem(node, found, RUNS, remedy(fault, here["address"], node["address"], port))
    return None


def check_visit(node: Facts, here: Facts, gcs: str, *_: Any) -> Finding | None:
    """Check that a process started there."""
    if "look" in node:
        return None
    found = f"its ports answer, but no process there did its task ({node.get('look error', 'the visit was cut off')})"
    fix = (
        f"allow TCP between {here['address']} and {node['address']} on the ports of workers ({RANGE}, or those given to "
        "ray start); if they are open, read raylet.out and worker-*.err in session_latest/logs of Ray's temporary folder there"
    )
    return problem(node, found, RUNS, fix)


def check_versions(node: Facts, here: Facts, gcs: str, ray_version: str, *_: Any) -> Finding | None:
    """Check the versions that must be equal."""
    look = node["look"]
    if "broken" in look:
        found = f"jaxrl does not work with its Python, {look['python']} ({look['broken']})"
        return problem(node, found, RUNS, f'{look["python"]} -m pip install "jaxrl[ray]" there')
    if unequal := difference(short_versions() | {"ray": ray_version}, look["versions"]):
        found = f"it has other versions: {unequal}"
        return problem(node, found, RUNS, f"the same environment on both machines (there: {look['python']})")
    return None


def check_way_back(node: Facts, here: Facts, gcs: str, *_: Any) -> Finding | None:
    """Check the way from a node to this machine and to the head."""
    targets = [
        ("this machine's raylet", here["address"], here["raylet"]),
        ("this machine's object manager", here["address"], here["objects"]),
        ("the cluster's head", *gcs.rsplit(":", 1)),
    ]
    for (what, address, port), fault in zip(targets, node["look"]["faults"], strict=True):
        if fault:
            found = f"the port of {what}, {address}:{port}, {TEXTS[fault]}, asked from there"
            return problem(node, found, "results of objects there", remedy(fault, node["address"], address, port))
    return None


def check_transfer(node: Facts, here: Facts, *_: Any) -> Finding | None:
    """Check that a value came from its object store, and that its clock was read."""
    if "measure error" not in node and "clock" in node:
        return None
    found = f"a value of 4 MiB did not come here from its object store ({node.get('measure error', 'it was cut off')})"
    fix = f"ping -M do -s 1472 {here['address']} there: the link may be slow, or lose large packets"
    return problem(node, found, "large results", fix)


def check_shared(node: Facts, here: Facts, gcs: str, ray_version: str, shared: str) -> Finding | None:
    """Check that both see what the other writes."""
    if not shared:
        return None
    mount = f"the same file system at {shared} on {node['address']} and here"
    if error := node.get("shared error"):
        found = f"{shared} did not answer there ({error})"
    elif error := node.get("read", "the check was cut off"):
        found = f"a file written here to {shared} cannot be read there: {error}"
    elif error := node.get("write", "the check was cut off"):
        found, mount = f"{shared} cannot be written to there: {error}", f"rights of Ray's user to write to {shared} there"
    elif error := node.get("seen", "the check was cut off"):
        found = f"a file written there to {shared} cannot be read here: {error}"
    else:
        return None
    return problem(node, found, "runs and checkpoints in this folder", mount)


def check_clock(node: Facts, *_: Any) -> Finding | None:
    """Check that its clock is not far off, as certificates of TLS and tickets of Kerberos then fail."""
    offset, error = node["clock"]
    if abs(offset) - error <= WRONG:
        return None
    found = f"its clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
    return problem(
        node, found, "times of files and logs, and soon TLS and network file systems", "timedatectl set-ntp true there"
    )


def remedy(fault: str, source: str, target: str, port: Any) -> str:
    """Return what to do where ``source`` does not reach a port of ``target``."""
    return {
        REFUSED: f"ray start on {target} again: nothing listens there any more",
        NO_ANSWER: f"allow TCP from {source} to {target}:{port} in firewalls and security groups",
        SILENT: f"ps -o pid,stat,args -C raylet,gcs_server on {target}: a process in state T continues after kill -CONT PID",
        UNREACHABLE: f"ip route get {target} on {source}, ip link on {target}",
    }[fault]


def name_of(node: Facts) -> str:
    return f"node {node['address']} ({node['host']})"


def problem(node: Facts, found: str, breaks: str, fix: str) -> Finding:
    return Finding(CLUSTER, name_of(node), "problem", found, breaks, fix)

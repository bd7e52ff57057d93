"""Diagnosis of a cluster of Ray: each hop from this process to the nodes and back, up to the first that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxrl.runtime.doctor.finding import CLUSTER, Finding, pip
from jaxrl.runtime.doctor.machine import check_folder
from jaxrl.runtime.doctor.packages import installed_version
from jaxrl.runtime.doctor.probe import Answer, ask
from jaxrl.runtime.doctor.ray.nodes import check_nodes
from jaxrl.runtime.doctor.ray.ports import (
    NO_ANSWER,
    REFUSED,
    SILENT,
    TEXTS,
    UNREACHABLE,
    fault_of,
    resolve,
    split_address,
    within_limit,
)

ALLOWED = ((2, 59), (3,))
"""Versions of Ray that jaxrl works with: from the first one up to the second. As in pyproject.toml."""

REQUIREMENT = "ray>=2.59,<3"

LIMIT = 200.0
"""Seconds that the process may take that joins the cluster. It ends itself earlier."""

JOINING = 'remote.open("ray")'


def diagnose_cluster(address: str, shared: str | None = None) -> list[Finding]:
    """Check the cluster at an address such as "10.0.0.1:6379", and a folder that its nodes should share."""
    found: list[Finding] = []
    for hop in (check_package, partial(check_address, address), partial(check_gcs, address)):
        found.append(finding := hop())
        if finding.level == "problem":
            return [*found, Finding(CLUSTER, "further hops", "note", f"skipped, because of the problem with the {finding.check}")]
    if shared is not None:
        found.append(check_shared_here(shared))
        shared = shared if found[-1].level != "problem" else None
    return [*found, *check_answer(ask_driver(address, shared), address, shared or "")]


def ask_driver(address: str, shared: str | None) -> Answer:
    folder = "" if shared is None else str(Path(shared).resolve())
    return ask(address, folder, module="jaxrl.runtime.doctor.ray.driver", timeout=LIMIT)


def check_package() -> Finding:
    """Check that Ray is installed here, in a version that jaxrl works with."""
    version = installed_version("ray")
    if version is None:
        return problem("package ray", "not installed here", JOINING, pip("install", "jaxrl[ray]"))
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if not ALLOWED[0] <= numbers < ALLOWED[1]:
        return problem("package ray", f"{version} is not {REQUIREMENT}", JOINING, pip("install", REQUIREMENT))
    return Finding(CLUSTER, "package ray", "ok", version)


def check_address(address: str) -> Finding:
    """Check that the address has a host and a port, and that the host has an IP address."""
    use = "jaxrl doctor --ray HOST:PORT with the address of the cluster's head, as ray start --head printed it"
    if address.startswith("ray://"):
        found = f"{address} is an address of Ray Client, which remote objects do not use: its calls take a detour"
        return problem("address", found, JOINING, f"{use}: its port is 6379 unless another was chosen")
    try:
        host, port = split_address(address)
    except ValueError as error:
        return problem("address", str(error), JOINING, use)
    try:
        return Finding(CLUSTER, "address", "ok", f"{resolve(host)}, port {port}")
    except OSError as error:
        found = f"this machine does not know the name {host} ({error.strerror or error})"
        return problem("address", found, JOINING, f"getent hosts {host}, or the IP address of the cluster's head instead")


def check_gcs(address: str) -> Finding:
    """Check that the head's global control service (GCS) answers."""
    host, port = split_address(address)
    fault = fault_of(host, port)
    if not fault:
        return Finding(CLUSTER, "GCS port", "ok", f"{address} answers")
    why, fix = {
        REFUSED: ("no head of Ray listens there", f"RAY_AUTH_MODE=token ray start --head --port={port} on {host}"),
        NO_ANSWER: (
            "the machine is off, its link is down, or a firewall drops packets",
            f"ping {host}; if it answers, allow TCP from here to port {port} there",
        ),
        UNREACHABLE: ("its network is down, or has no route from here", f"ip route get {host} here, ip link on {host}"),
        SILENT: ("it is stopped, or hangs", f"ps -o pid,stat,args -C gcs_server on {host}; in state T: kill -CONT PID"),
    }[fault]
    return problem("GCS port", f"{address} {TEXTS[fault]}: {why}", JOINING, fix)


def check_shared_here(shared: str) -> Finding:
    """Check that this machine can write to the shared folder."""
    mount = f"mount it at {shared} here"
    try:
        if not within_limit(Path(shared).is_dir):
            return problem("shared folder", f"{shared} is not a folder on this machine", "runs in it", mount)
        fix = f"rights to write to {shared}"
        found = within_limit(lambda: check_folder("shared folder", lambda: shared, "runs and checkpoints in it", fix))
    except TimeoutError as error:
        return problem("shared folder", f"{shared}: {error}: its file system hangs", "runs in it", mount)
    return found._replace(group=CLUSTER)


def check_answer(answer: Answer, address: str, shared: str) -> Iterator[Finding]:
    """Check what the process found that joined the cluster."""
    facts = answer.facts
    if "clusters here" not in facts:
        reason = facts.get("reason", f"no check was possible: {answer.end}")
        yield check_refusal(facts.get("refused", ""), reason, address)
        return
    yield Finding(CLUSTER, "token", "ok", "the cluster asks for one, and accepts this process's")
    if "joined" not in facts:
        yield check_join(facts, answer, address)
        return
    yield Finding(CLUSTER, "joining", "ok", f"this process joined, and found {len(facts.get('nodes', []))} nodes")
    if "here" in facts:
        nodes = facts["nodes"]
        yield from check_nodes(nodes, facts["here"], address, installed_version("ray") or "", shared)
    if "complete" not in facts:
        fix = f"ray status --address={address}"
        yield problem("nodes", f"the visit ended early ({answer.end})", "objects on them", fix)


def check_refusal(kind: str, reason: str, address: str) -> Finding:
    """Return the finding for an error of ``remote.ray.connect.check_token``."""
    if kind == "no token":
        found = f"the cluster at {address} asks for no token: anyone who reaches it can run programs there"
        fix = "ray stop and RAY_AUTH_MODE=token ray start … on all machines, with one token (ray get-auth-token --generate)"
        return problem("token", found, f"{JOINING} without insecure=True", fix)
    if kind == "wrong token":
        found, _, why = reason.partition(": set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH ")
        return problem("token", f"{found} {why}", JOINING, "export RAY_AUTH_TOKEN_PATH=/path/to/the/token/of/the/cluster")
    if kind == "other version":
        found, _, fix = reason.partition(": ")
        return problem("version of Ray", found, JOINING, fix)
    return problem("token", reason, JOINING, f"ray status --address={address}")


def check_join(facts: dict[str, object], answer: Answer, address: str) -> Finding:
    """Return the finding for a cluster that this process could not join."""
    error = facts.get("join error") or answer.end
    here = facts.get("clusters here")
    if not here:
        found = "no process of Ray runs on this machine, and a program joins the cluster through a node on its machine"
        return problem(
            "joining", found, JOINING, f"RAY_AUTH_MODE=token ray start --address={address} here; --num-cpus=0 for no objects"
        )
    if address not in here:  # type: ignore[operator]
        error = f"{error}; Ray on this machine belongs to {', '.join(here)}"  # type: ignore[arg-type]
    return problem("joining", f"this process cannot join: {error}", JOINING, f"ray stop; ray start --address={address} here")


def problem(check: str, found: str, breaks: str, fix: str) -> Finding:
    return Finding(CLUSTER, check, "problem", found, breaks, fix)

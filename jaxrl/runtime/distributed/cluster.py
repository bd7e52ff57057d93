"""A process's place in a group: where the group meets, how many there are, and which of them this is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

COORDINATOR, NUM_PROCESSES, PROCESS_ID = "JAXRL_COORDINATOR", "JAXRL_NUM_PROCESSES", "JAXRL_PROCESS_ID"
"""Variables that say it: ``jaxrl launch`` sets them, and manifests of clusters can."""

HEARTBEAT = "JAXRL_HEARTBEAT"
"""The variable that says after how many seconds without a sign of life a process is taken for dead."""

PORT_TAKEN = 98
"""The exit code of process 0 where another program has the group's port; ``jaxrl launch`` then chooses another one."""

DEFAULT_PORT = 14_270
FIRST_PORT, NUM_PORTS = 61_440, 4_096
"""Ports of which a job's number chooses one, where a scheduler names none: all processes choose the same."""


class ProcessPlace(NamedTuple):
    """Where a process stands in its group."""

    coordinator: str
    """``host:port`` of process 0, at which all meet."""
    num_processes: int
    process_id: int

    @property
    def is_local(self) -> bool:
        """Whether all are on this machine, by the address at which they meet."""
        return is_loopback(self.address[0])

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def find_place(
    variables: Mapping[str, str],
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> ProcessPlace:
    """What was given, and for the rest what the environment says: jaxrl's own variables, SLURM's, or Open MPI's.

    Raises:
      ValueError: something is missing or wrong; the message says what, and where it came from.
    """
    found = _own(variables, num_processes) or _of_slurm(variables) or _of_open_mpi(variables, coordinator) or {}
    given = {COORDINATOR: coordinator, NUM_PROCESSES: num_processes, PROCESS_ID: process_id}
    said = {
        name: str(found[name] if value is None else value) for name, value in given.items() if value is not None or name in found
    }
    if NUM_PROCESSES not in said:
        raise ValueError(
            "this process is in no group: give num_processes=, process_id= and coordinator='host:port' of process 0, or set "
            f"{NUM_PROCESSES}, {PROCESS_ID} and {COORDINATOR}, or start it with jaxrl launch, srun or mpirun"
        )
    count = _number("num_processes", said[NUM_PROCESSES], 1)
    if count > 1 and PROCESS_ID not in said:
        raise ValueError(f"num_processes={count}, and nothing says which of them this is: give process_id=0 … {count - 1}")
    number = _number("process_id", said.get(PROCESS_ID, "0"), 0)
    if number >= count:
        raise ValueError(f"process_id={number} must be 0 … {count - 1}: num_processes is {count}, and they are counted from 0")
    return ProcessPlace(_address(said.get(COORDINATOR, f"127.0.0.1:{DEFAULT_PORT}")), count, number)


def _own(variables: Mapping[str, str], num_processes: int | None) -> dict[str, str] | None:
    """jaxrl's; the pods of an Indexed Job of Kubernetes are told their number by Kubernetes."""
    if NUM_PROCESSES not in variables and COORDINATOR not in variables:
        return None
    found = {name: variables[name] for name in (COORDINATOR, NUM_PROCESSES, PROCESS_ID) if name in variables}
    if PROCESS_ID not in found and "JOB_COMPLETION_INDEX" in variables:
        found[PROCESS_ID] = variables["JOB_COMPLETION_INDEX"]
    if NUM_PROCESSES not in found and num_processes is None:
        raise ValueError(f"{COORDINATOR} is set and {NUM_PROCESSES} is not: say how many processes there are")
    return found


def _of_slurm(variables: Mapping[str, str]) -> dict[str, str] | None:
    """A task that srun has started. The batch script itself, which runs once, is none."""
    if not {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"} <= set(variables):
        return None
    port = FIRST_PORT + _number("SLURM_JOB_ID", variables["SLURM_JOB_ID"], 0) % NUM_PORTS
    return {
        COORDINATOR: f"{first_node(variables['SLURM_STEP_NODELIST'])}:{port}",
        NUM_PROCESSES: variables["SLURM_STEP_NUM_TASKS"],
        PROCESS_ID: variables["SLURM_PROCID"],
    }


def first_node(nodes: str) -> str:
    """Of SLURM's short form of a list: ``gpu[07-12,15],login`` begins with ``gpu07``."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise ValueError(f"SLURM_STEP_NODELIST={nodes!r} names no node: give coordinator='host:port' of process 0")
    return "".join(part or "" for part in match.groups())


def _of_open_mpi(variables: Mapping[str, str], coordinator: str | None) -> dict[str, str] | None:
    """A process that mpirun has started; Open MPI 4 says where mpirun itself runs, whose machine has process 0."""
    if not {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} <= set(variables):
        return None
    found = {NUM_PROCESSES: variables["OMPI_COMM_WORLD_SIZE"], PROCESS_ID: variables["OMPI_COMM_WORLD_RANK"]}
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
    if variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == found[NUM_PROCESSES]:
        found[COORDINATOR] = f"127.0.0.1:{DEFAULT_PORT}"
    elif match := re.search(r"^(\d+)[^;]*;tcp[46]?://\[?([0-9a-fA-F.:]+?)[],:;]", uri):
        found[COORDINATOR] = f"{match[2]}:{FIRST_PORT + int(match[1]) % NUM_PORTS}"
    elif coordinator is None:
        raise ValueError(f"mpirun does not say where process 0 is: set {COORDINATOR}=host:port, and pass it on with mpirun -x")
    return found


def _number(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name}={text!r} must be a whole number from {least} up")
    return int(text)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536) or (":" in host and not host.startswith("[")):
        raise ValueError(f"coordinator={text!r} must be 'host:port' of process 0, as in '10.0.0.1:{DEFAULT_PORT}'")
    return text

"""Place of a process in a group: the address where the group meets, the number of processes, and the process's own number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

COORDINATOR, NUM_PROCESSES, PROCESS_ID = "JAXRL_COORDINATOR", "JAXRL_NUM_PROCESSES", "JAXRL_PROCESS_ID"
"""Variables for the place. ``jaxrl launch`` sets them, and manifests of clusters can."""

HEARTBEAT = "JAXRL_HEARTBEAT"
"""Variable with the seconds without a heartbeat after which a process is considered dead."""

PORT_TAKEN = 98
"""Exit code of process 0 if another program uses the group's port. ``jaxrl launch`` then chooses another port."""

DEFAULT_PORT = 14_270
FIRST_PORT, NUM_PORTS = 61_440, 4_096
"""Ports from which the job's number selects one if the scheduler names none, so that all processes use the same port."""


class ProcessPlace(NamedTuple):
    """Place of a process in its group."""

    coordinator: str
    """``host:port`` of process 0, where all processes meet."""
    num_processes: int
    process_id: int

    @property
    def is_local(self) -> bool:
        """True if the coordinator's address is local, so that all processes are on this machine."""
        return is_loopback(self.address[0])

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def find_place(
    variables: Mapping[str, str], coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> ProcessPlace:
    """Return the place given by the arguments, and otherwise by the environment: jaxrl's variables, SLURM's, or Open MPI's.

    Raises:
      ValueError: a value is missing or wrong; the message names it and its source.
    """
    found = _own(variables, num_processes) or _of_slurm(variables) or _of_open_mpi(variables, coordinator) or {}
    arguments = {COORDINATOR: coordinator, NUM_PROCESSES: num_processes, PROCESS_ID: process_id}
    said = {
        name: str(found[name] if value is None else value)
        for name, value in arguments.items()
        if value is not None or name in found
    }
    if NUM_PROCESSES not in said:
        raise ValueError(
            "this process is not in a group: give num_processes=, process_id= and coordinator='host:port' of process 0, or set "
            f"{NUM_PROCESSES}, {PROCESS_ID} and {COORDINATOR}, or start it with jaxrl launch, srun or mpirun"
        )
    count = _number("num_processes", said[NUM_PROCESSES], 1)
    if count > 1 and PROCESS_ID not in said:
        raise ValueError(f"num_processes={count}, but the number of this process is missing: give process_id=0 … {count - 1}")
    number = _number("process_id", said.get(PROCESS_ID, "0"), 0)
    if number >= count:
        raise ValueError(f"process_id={number} must be 0 … {count - 1}, since num_processes is {count}")
    return ProcessPlace(_address(said.get(COORDINATOR, f"127.0.0.1:{DEFAULT_PORT}")), count, number)


def _own(variables: Mapping[str, str], num_processes: int | None) -> dict[str, str] | None:
    """Read jaxrl's variables. In an Indexed Job of Kubernetes the pod's number is in a variable of Kubernetes."""
    if NUM_PROCESSES not in variables and COORDINATOR not in variables:
        return None
    found = {name: variables[name] for name in (COORDINATOR, NUM_PROCESSES, PROCESS_ID) if name in variables}
    if PROCESS_ID not in found and "JOB_COMPLETION_INDEX" in variables:
        found[PROCESS_ID] = variables["JOB_COMPLETION_INDEX"]
    if NUM_PROCESSES not in found and num_processes is None:
        raise ValueError(f"{COORDINATOR} is set, but {NUM_PROCESSES} is not: set it to the number of processes")
    return found


def _of_slurm(variables: Mapping[str, str]) -> dict[str, str] | None:
    """Read SLURM's variables of a task that srun started. The batch script itself, which runs once, is not a task."""
    if not {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"} <= set(variables):
        return None
    port = FIRST_PORT + _number("SLURM_JOB_ID", variables["SLURM_JOB_ID"], 0) % NUM_PORTS
    return {
        COORDINATOR: f"{first_node(variables['SLURM_STEP_NODELIST'])}:{port}",
        NUM_PROCESSES: variables["SLURM_STEP_NUM_TASKS"],
        PROCESS_ID: variables["SLURM_PROCID"],
    }


def first_node(nodes: str) -> str:
    """Return the first node of a list in SLURM's short form: ``gpu07`` of ``gpu[07-12,15],login``."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise ValueError(f"SLURM_STEP_NODELIST={nodes!r} names no node: give coordinator='host:port' of process 0")
    return "".join(part or "" for part in match.groups())


def _of_open_mpi(variables: Mapping[str, str], coordinator: str | None) -> dict[str, str] | None:
    """Read Open MPI's variables of a process that mpirun started. Open MPI 4 names the host of mpirun, which runs process 0."""
    if not {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} <= set(variables):
        return None
    found = {NUM_PROCESSES: variables["OMPI_COMM_WORLD_SIZE"], PROCESS_ID: variables["OMPI_COMM_WORLD_RANK"]}
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
    if variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == found[NUM_PROCESSES]:
        found[COORDINATOR] = f"127.0.0.1:{DEFAULT_PORT}"
    elif match := re.search(r"^(\d+)[^;]*;tcp[46]?://\[?([0-9a-fA-F.:]+?)[],:;]", uri):
        found[COORDINATOR] = f"{match[2]}:{FIRST_PORT + int(match[1]) % NUM_PORTS}"
    elif coordinator is None:
        raise ValueError(
            f"mpirun does not provide the address of process 0: set {COORDINATOR}=host:port, and export it with mpirun -x"
        )
    return found


def _number(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name}={text!r} must be a whole number >= {least}")
    return int(text)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536) or (":" in host and not host.startswith("[")):
        raise ValueError(f"coordinator={text!r} must be 'host:port' of process 0, as in '10.0.0.1:{DEFAULT_PORT}'")
    return text

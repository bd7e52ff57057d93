"""``jaxrl.parallel.initialize``: join a group of processes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from types import TracebackType

import jax

from jaxrl.runtime.distributed.cluster import HEARTBEAT, ProcessPlace, find_place, is_loopback
from jaxrl.runtime.distributed.group import PATIENCE, ProcessFailed, ProcessGroup, current
from jaxrl.runtime.distributed.messages import find_secret
from jaxrl.runtime.distributed.rendezvous import roll_call
from jaxrl.runtime.logs.provenance import installed_versions, source_digest
from jaxrl.settings.validation import Range, check_number
from jaxrl.xla.private_jax import backends_started

COMPARED = ("jaxrl", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
"""Packages whose versions must be the same in all processes."""


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: float = 60.0,
    heartbeat: float | None = None,
) -> ProcessGroup:
    """Join a group of processes. JAX's devices are then those of all processes, and ``jaxrl.run`` trains on all of them.

    Every process calls this once, before it uses JAX. Missing arguments are read from ``JAXRL_COORDINATOR``,
    ``JAXRL_NUM_PROCESSES`` and ``JAXRL_PROCESS_ID``, which ``jaxrl launch`` sets (or ``JOB_COMPLETION_INDEX``, which a Kubernetes
    Job sets), or from SLURM's or Open MPI's variables. With one process there is no group.

    The processes first meet and compare their numbers, their versions and jaxrl's source. If these do not fit, all raise an error
    that says why. With a secret in ``JAXRL_SECRET``, or in the file named by ``JAXRL_SECRET_FILE``, no other processes can join.
    Once they are connected, an uncaught error ends its process at once, and a process that has lost another one aborts (SIGABRT)
    within the heartbeat. Start all of them again, and a run with ``out`` resumes from its last checkpoint.

    Args:
      coordinator: ``host:port`` of process 0; default: 127.0.0.1, for processes on this machine only.
      num_processes: number of processes in the group.
      process_id: number of this process, from 0.
      timeout: seconds in which all processes must join.
      heartbeat: seconds without a heartbeat after which a process is considered dead; default: ``JAXRL_HEARTBEAT``, or 30.

    Raises:
      ValueError: numbers or versions do not fit together, or JAX was used before.
      TimeoutError: a process did not join.
      OSError: the coordinator's address is not one of process 0's machine, or another program uses its port.
    """
    check_number("timeout", timeout, Range(0, open_low=True))
    heartbeat = check_heartbeat(heartbeat)
    place = find_place(os.environ, coordinator, num_processes, process_id)
    if place.num_processes == 1:
        return current()
    _check_unused()
    _check_own_name(place)
    about = {name: version for name, version in installed_versions().items() if name in COMPARED}
    host = roll_call(place, about | {"source of jaxrl": source_digest()}, timeout, find_secret(os.environ))
    # With this service JAX would catch SIGTERM, and only record it.
    jax.config.update("jax_enable_preemption_service", False)
    at = None if host is None else f"[{host}]:{place.address[1]}" if ":" in host else f"{host}:{place.address[1]}"
    jax.distributed.initialize(
        place.coordinator,
        place.num_processes,
        place.process_id,
        cluster_detection_method="deactivate",
        coordinator_bind_address=at,
        initialization_timeout=max(1, round(timeout)),
        heartbeat_timeout_seconds=max(1, round(heartbeat)),
        shutdown_timeout_seconds=round(PATIENCE),  # process 0 may write for long; dead processes are found earlier
    )
    sys.excepthook = _end_at_once
    return current()


def check_heartbeat(heartbeat: float | None) -> float:
    """Return the seconds given by the argument or the environment, after checking them."""
    if heartbeat is None:
        said = os.environ.get(HEARTBEAT, "30")
        try:
            heartbeat = float(said)
        except ValueError:
            raise ValueError(f"{HEARTBEAT}={said!r} must be a number of seconds") from None
    check_number("heartbeat", heartbeat, Range(1))
    return heartbeat


def _check_unused() -> None:
    if jax.distributed.is_initialized():
        raise ValueError("this process has joined a group before: call jaxrl.parallel.initialize only once")
    if backends_started():
        raise ValueError(
            "JAX was used before jaxrl.parallel.initialize, and counts its devices only once: call initialize first, before any "
            "array is made"
        )


def _check_own_name(place: ProcessPlace) -> None:
    """Check that this machine's name leads to an address that others can reach: on CPUs JAX connects processes by these names."""
    if place.is_local:
        return
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "nothing"
    if address == "nothing" or is_loopback(address):
        raise ValueError(
            f"this machine's name {socket.gethostname()!r} leads to {address} here (see /etc/hosts), but JAX's processes on "
            "other machines need it: make the name lead to the address by which they reach this machine"
        )


def _end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Handle an uncaught error as Python does, but exit without its shutdown, in which JAX would wait for the other processes
    while they wait for this one."""
    traceback.print_exception(kind, error, trace)
    current().fail("" if isinstance(error, ProcessFailed) else f"{kind.__name__}: {error}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(128 + getattr(error, "signal", signal.SIGINT) if isinstance(error, KeyboardInterrupt) else 1)

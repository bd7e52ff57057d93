"""``jaxrl.parallel.initialize``: this process becomes one of a group."""

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
"""Packages of which all processes need the same version."""


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: float = 60.0,
    heartbeat: float | None = None,
) -> ProcessGroup:
    """Join the processes of a group, so that JAX's devices are those of all: ``jaxrl.run`` then trains on all of them.

    Every process calls it once, before JAX is used. What is not given comes from ``JAXRL_COORDINATOR``, ``JAXRL_NUM_PROCESSES``
    and ``JAXRL_PROCESS_ID``, as ``jaxrl launch`` sets them (or ``JOB_COMPLETION_INDEX``, as a Job of Kubernetes does), or from
    SLURM's or Open MPI's variables. A group of one is none.

    The processes meet first, and compare their numbers, their versions and jaxrl's source: all are told, in an error, what does
    not fit. With a secret in ``JAXRL_SECRET``, or in the file that ``JAXRL_SECRET_FILE`` names, no others can join. Once they are
    connected, an error that nobody catches ends its process at once, and a process that has lost another one ends itself
    (SIGABRT), within the heartbeat: start them again, and a run with ``out`` goes on from its last checkpoint.

    Args:
      coordinator: ``host:port`` of process 0; default: this machine alone, 127.0.0.1.
      num_processes: in the group.
      process_id: which this is, from 0.
      timeout: seconds in which all must come.
      heartbeat: seconds without a sign of life after which a process is taken for dead; default: ``JAXRL_HEARTBEAT``, or 30.

    Raises:
      ValueError: numbers or versions do not fit together; or JAX was used before.
      TimeoutError: somebody did not come.
      OSError: the coordinator's address is not one of process 0's machine, or another program has its port.
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
    # JAX would catch SIGTERM, and only take a note of it.
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
        shutdown_timeout_seconds=round(PATIENCE),  # the first may have much to write; one that is dead is found earlier
    )
    sys.excepthook = _end_at_once
    return current()


def check_heartbeat(heartbeat: float | None) -> float:
    """Seconds: what was given, or what the environment says."""
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
        raise ValueError("this process has joined a group before: call jaxrl.parallel.initialize once")
    if backends_started():
        raise ValueError(
            "JAX was used before jaxrl.parallel.initialize: it counts its devices once. Call it first, before any array is made"
        )


def _check_own_name(place: ProcessPlace) -> None:
    """On CPUs JAX's processes find each other by the names of their machines."""
    if place.is_local:
        return
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "nothing"
    if address == "nothing" or is_loopback(address):
        raise ValueError(
            f"this machine calls itself {socket.gethostname()!r}, which leads to {address} here (see /etc/hosts), and other "
            "machines are to reach it by that name: let it lead to the address that they know it by"
        )


def _end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python does with an error that nobody caught, but for its last duties: JAX would wait for the other processes there,
    and they for this one."""
    traceback.print_exception(kind, error, trace)
    current().fail("" if isinstance(error, ProcessFailed) else f"{kind.__name__}: {error}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(128 + getattr(error, "signal", signal.SIGINT) if isinstance(error, KeyboardInterrupt) else 1)

"""Rendezvous of a group's processes before JAX connects them, with errors that name missing, duplicate or different processes.

JAX itself would abort a process (SIGABRT, a page of stack) whose group does not match, without an error in the others.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import time
from typing import Any

from jaxrl.runtime.distributed.cluster import ProcessPlace, is_loopback
from jaxrl.runtime.distributed.listener import Door
from jaxrl.runtime.distributed.messages import SECRET, Forged, clean, new_nonce, opened, parsed, read_line, sealed

GRACE = 5.0
"""Seconds that process 0's answer may take after its own timeout."""

LONGEST_PROBLEM = 2_000
"""Maximum characters of process 0's error message."""


class PortTaken(OSError):
    """Error: another program listens at the group's port. Another port may be free."""


def roll_call(place: ProcessPlace, about: dict[str, Any], timeout: float, secret: bytes = b"") -> str | None:
    """Meet the other processes at the coordinator's address, and free its port again.

    Args:
      about: plain JSON data that must be the same in all processes, such as versions.
      timeout: seconds in which all processes must arrive.
      secret: secret of the group; processes with another secret are rejected. Empty: no secret.

    Returns:
      In process 0, the address of this machine at which they met.

    Raises:
      ValueError: the processes do not fit together. All of them raise the same message, which says what to change.
      TimeoutError: a process did not arrive; the message says which.
      PortTaken: another program uses the coordinator's port. This is an OSError.
      OSError: the coordinator's address is not one of process 0's machine.
    """
    name = f"{socket.gethostname()}, pid {os.getpid()}"
    mine = {"process_id": place.process_id, "num_processes": place.num_processes, "name": name, "about": about}
    if place.process_id:
        _report(place, mine, timeout, secret)
        return None
    return _call(place, mine, timeout, secret)


def _call(place: ProcessPlace, mine: dict[str, Any], timeout: float, secret: bytes) -> str:
    """Wait for all other processes, compare them, and send each the result."""
    late, reports = time.monotonic() + timeout, {0: mine}
    with _listen(place, late) as listener, contextlib.closing(Door(listener, secret)) as door:
        host = listener.getsockname()[0]
        problem: str | None = None
        late_is_why = False
        while problem is None and len(reports) < place.num_processes:
            if (report := door.next_report(late)) is None:
                problem, late_is_why = _missing(place, reports, timeout, door.forged), True
            elif (problem := why_unfit(reports, report)) is None:
                reports[report["process_id"]] = report
        door.answer({"problem": problem, "late": late_is_why})
    if problem is not None:
        raise TimeoutError(problem) if late_is_why else ValueError(problem)
    return str(host)


def _listen(place: ProcessPlace, late: float) -> socket.socket:
    """Return a socket that listens only at the coordinator's address."""
    while True:
        try:
            return _listen_now(place)
        except OSError as error:
            unknown = isinstance(error, socket.gaierror)
            if (unknown or (_is_name(place) and error.errno == errno.EADDRNOTAVAIL)) and time.monotonic() < late:
                time.sleep(0.05)  # the cluster may not know the name yet, or still know the previous machine's address
                continue
            reason = f"this machine does not know that name ({error.strerror})" if unknown else error.strerror
            raise (PortTaken if error.errno == errno.EADDRINUSE else OSError)(
                error.errno,
                f"process 0 cannot meet the others at coordinator={place.coordinator!r}: {reason}. Give an address of this "
                "machine, and a port that is free; another process with process_id=0 may be using it",
            ) from None


def _listen_now(place: ProcessPlace) -> socket.socket:
    """Listen at the first of the coordinator's addresses that belongs to this machine."""
    *others, last = addresses(place)
    for host in others:
        try:
            return _server(host, place)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return _server(last, place)


def _server(host: str, place: ProcessPlace) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, place.address[1]), family=family, backlog=1024)


def _is_name(place: ProcessPlace) -> bool:
    try:
        ipaddress.ip_address(place.address[0])
    except ValueError:
        return True
    return False


def addresses(place: ProcessPlace) -> list[str]:
    """Return the addresses of process 0 to which the coordinator's name leads; ValueError if other machines cannot reach any."""
    host, port = place.address
    if not _is_name(place):
        return [host]
    if place.is_local:
        return ["127.0.0.1"]
    resolved = {str(each[4][0]): None for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    found = sorted(resolved, key=lambda address: ":" in address)  # IPv4 first, which all machines have
    if not (reachable := [each for each in found if not is_loopback(each)]):
        raise ValueError(
            f"coordinator={place.coordinator!r} leads to {found[0]} on the machine of process 0 (see /etc/hosts), where other "
            "machines cannot reach it: give the address by which they can"
        )
    return reachable


def why_unfit(reports: dict[int, dict[str, Any]], new: dict[str, Any]) -> str | None:
    """Return why a process does not fit the group of those that arrived before it; None if it fits."""
    first, number = reports[0], new["process_id"]
    who = f"process {number} ({clean(new['name'])})"
    if new["num_processes"] != first["num_processes"]:
        return (
            f"{who} has num_processes={new['num_processes']}, and process 0 ({first['name']}) has num_processes="
            f"{first['num_processes']}: give all processes the same number"
        )
    if number in reports:
        return (
            f"two processes have process_id={number}: {clean(reports[number]['name'])}, and {clean(new['name'])}: give each "
            f"its own process_id, 0 … {first['num_processes'] - 1}"
        )
    for name, value in first["about"].items():
        if (other := new["about"].get(name)) != value:
            return f"{who} has {name} {clean(other)}, and process 0 ({first['name']}) has {value}: install the same version"
    return None


def _missing(place: ProcessPlace, reports: dict[int, Any], timeout: float, forged: int) -> str:
    absent = [str(number) for number in range(place.num_processes) if number not in reports]
    shown = ", ".join(absent[:8]) + (", …" if len(absent) > 8 else "")
    strangers = f" ({forged} had another {SECRET})" if forged else ""
    return (
        f"{len(absent)} of {place.num_processes} processes did not reach {place.coordinator} within {timeout:g} s{strangers}: "
        f"number {shown}. Check their output. All need the same coordinator, and network access to it (firewalls)"
    )


def _report(place: ProcessPlace, mine: dict[str, Any], timeout: float, secret: bytes) -> None:
    """Report to process 0, and receive the result."""
    with _connect(place, timeout) as connection:
        late, nonce = time.monotonic() + timeout + GRACE, new_nonce()  # process 0 may have started later
        theirs = _nonce_of(place, connection, late)
        try:
            connection.sendall(sealed({**mine, "nonce": nonce}, secret, theirs))
            answer = opened(read_line(connection, late), secret, nonce)
        except Forged:
            raise ValueError(
                f"process 0 at coordinator={place.coordinator!r} has another secret than process {place.process_id}: give all "
                f"the same {SECRET}, or none"
            ) from None
        except (OSError, ValueError):
            raise TimeoutError(
                f"process {place.process_id} connected to coordinator={place.coordinator!r}, but process 0 did not answer: check "
                "its output"
            ) from None
    if (problem := answer.get("problem")) is not None:
        problem = clean(problem, LONGEST_PROBLEM)
        raise TimeoutError(problem) if answer.get("late") else ValueError(problem)


def _nonce_of(place: ProcessPlace, connection: socket.socket, late: float) -> str:
    """Return the nonce that process 0 sends first."""
    situation = f"process {place.process_id} connected to coordinator={place.coordinator!r}"
    try:
        nonce = parsed(read_line(connection, late)).get("nonce")
        if isinstance(nonce, str):
            return nonce
    except TimeoutError:
        raise TimeoutError(
            f"{situation}, but nothing answers there: another program uses that port, or process 0 hangs"
        ) from None
    except (OSError, ValueError):
        pass
    raise PortTaken(
        f"{situation}, but the answer is not from process 0: another program uses that port, or process 0 has just ended"
    )


def _connect(place: ProcessPlace, timeout: float) -> socket.socket:
    late = time.monotonic() + timeout
    while True:
        try:
            connection = socket.create_connection(place.address, max(0.01, late - time.monotonic()))
            if connection.getsockname() != connection.getpeername():
                return connection
            connection.close()  # a self-connection: TCP makes one at a local port where no program listens
            reason: str | None = "no program listens there"
        except socket.gaierror as error:
            reason = error.strerror  # the cluster may not know the name yet
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() >= late:
            raise TimeoutError(
                f"process {place.process_id} found no process 0 at coordinator={place.coordinator!r} within {timeout:g} s "
                f"({reason}): check that it has started, that this is its address, and that no firewall blocks it"
            )
        time.sleep(0.05)

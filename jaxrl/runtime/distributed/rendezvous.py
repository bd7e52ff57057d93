"""Processes of a group meet before JAX connects them: one that is missing, there twice, or other than the rest is named.

JAX itself aborts a process (SIGABRT, a page of stack) whose group is not as it says, and tells the others nothing.
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
"""Seconds that process 0's answer may take after its own time is over."""

LONGEST_PROBLEM = 2_000
"""Characters of what process 0 says is wrong."""


class PortTaken(OSError):
    """Another program listens where the group is to meet; elsewhere it can."""


def roll_call(place: ProcessPlace, about: dict[str, Any], timeout: float, secret: bytes = b"") -> str | None:
    """Meet the others at the coordinator's address, and leave it free.

    Args:
      about: plain JSON data that must be the same in all processes: versions, say.
      timeout: seconds in which all must come.
      secret: of the group; those that have another one are strangers. Empty: everybody has it.

    Returns:
      In process 0 the address at which they have met, one of this machine's.

    Raises:
      ValueError: they do not fit together; all are told the same, with what to change.
      TimeoutError: one did not come; the message says which.
      PortTaken: another program has the coordinator's port, which is an OSError.
      OSError: the coordinator's address is not one of process 0's machine.
    """
    mine = {"process_id": place.process_id, "num_processes": place.num_processes, "name": name_of_this(), "about": about}
    if place.process_id:
        _report(place, mine, timeout, secret)
        return None
    return _call(place, mine, timeout, secret)


def name_of_this() -> str:
    return f"{socket.gethostname()}, pid {os.getpid()}"


# ------------------------------------------------------------------------------------------------------------------- process 0


def _call(place: ProcessPlace, mine: dict[str, Any], timeout: float, secret: bytes) -> str:
    """Wait for all the others, compare them, and tell each how that went."""
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
    """A socket at the coordinator's address, and at no other of this machine's."""
    while True:
        try:
            return _listen_now(place)
        except OSError as error:
            unknown = isinstance(error, socket.gaierror)
            if (unknown or (_is_name(place) and error.errno == errno.EADDRNOTAVAIL)) and time.monotonic() < late:
                time.sleep(0.05)  # a name that a cluster will know in a moment, or knows of the machine before this one
                continue
            reason = f"this machine does not know that name ({error.strerror})" if unknown else error.strerror
            raise (PortTaken if error.errno == errno.EADDRINUSE else OSError)(
                error.errno,
                f"process 0 cannot meet the others at coordinator={place.coordinator!r}: {reason}. Give an address of this "
                "machine, and a port that is free; one other process that is number 0, too, would hold it",
            ) from None


def _listen_now(place: ProcessPlace) -> socket.socket:
    """At the first address that is this machine's."""
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
    """Those of process 0 to which the coordinator's name leads.

    Raises:
      OSError: the name is not known.
      ValueError: other machines cannot reach them.
    """
    host, port = place.address
    if not _is_name(place):
        return [host]
    if place.is_local:
        return ["127.0.0.1"]
    given = {str(each[4][0]): None for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    found = sorted(given, key=lambda address: ":" in address)  # what all machines have first
    if not (reachable := [each for each in found if not is_loopback(each)]):
        raise ValueError(
            f"coordinator={place.coordinator!r} leads to {found[0]} on the machine of process 0 (see /etc/hosts), where other "
            "machines cannot reach it: give the address that they know it by"
        )
    return reachable


def why_unfit(reports: dict[int, dict[str, Any]], new: dict[str, Any]) -> str | None:
    """Why a process cannot be one of the group of those that came before it, of which 0 is the first."""
    first, number = reports[0], new["process_id"]
    who = f"process {number} ({clean(new['name'])})"
    if new["num_processes"] != first["num_processes"]:
        return (
            f"{who} says that there are {new['num_processes']} processes, and process 0 ({first['name']}) that there are "
            f"{first['num_processes']}: give all the same num_processes"
        )
    if number in reports:
        return (
            f"two processes say that they are number {number}: {clean(reports[number]['name'])}, and {clean(new['name'])}: give "
            f"each a process_id of its own, 0 … {first['num_processes'] - 1}"
        )
    for name, value in first["about"].items():
        if (other := new["about"].get(name)) != value:
            return f"{who} has {name} {clean(other)}, and process 0 ({first['name']}) has {value}: install the same"
    return None


def _missing(place: ProcessPlace, reports: dict[int, Any], timeout: float, forged: int) -> str:
    absent = [str(number) for number in range(place.num_processes) if number not in reports]
    shown = ", ".join(absent[:8]) + (", …" if len(absent) > 8 else "")
    strangers = f" ({forged} came with another {SECRET})" if forged else ""
    return (
        f"{len(absent)} of {place.num_processes} processes did not come to {place.coordinator} within {timeout:g} s{strangers}: "
        f"number {shown}. See what they say; all need the same coordinator, and a way to it (firewalls)"
    )


# -------------------------------------------------------------------------------------------------------------------- the others


def _report(place: ProcessPlace, mine: dict[str, Any], timeout: float, secret: bytes) -> None:
    """Come to process 0, and hear how it went."""
    with _connect(place, timeout) as connection:
        late, nonce = time.monotonic() + timeout + GRACE, new_nonce()  # process 0 may have come later, and waits as long
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
                f"process {place.process_id} came to coordinator={place.coordinator!r}, and process 0 did not answer: see what "
                "it says"
            ) from None
    if (problem := answer.get("problem")) is not None:
        problem = clean(problem, LONGEST_PROBLEM)
        raise TimeoutError(problem) if answer.get("late") else ValueError(problem)


def _nonce_of(place: ProcessPlace, connection: socket.socket, late: float) -> str:
    """What process 0 sends at once."""
    what = f"process {place.process_id} came to coordinator={place.coordinator!r}"
    try:
        nonce = parsed(read_line(connection, late)).get("nonce")
        if isinstance(nonce, str):
            return nonce
    except TimeoutError:
        raise TimeoutError(f"{what}, and nothing answers there: another program has that port, or process 0 hangs") from None
    except (OSError, ValueError):
        pass
    raise PortTaken(f"{what}, and what answers there is not process 0: another program has that port; or it has just ended")


def _connect(place: ProcessPlace, timeout: float) -> socket.socket:
    late = time.monotonic() + timeout
    while True:
        try:
            connection = socket.create_connection(place.address, max(0.01, late - time.monotonic()))
            if connection.getsockname() != connection.getpeername():
                return connection
            connection.close()  # TCP has connected it with itself, as happens at a port of this machine where nobody listens
            reason: str | None = "nobody listens there"
        except socket.gaierror as error:
            reason = error.strerror  # a name that a cluster will know in a moment
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() >= late:
            raise TimeoutError(
                f"process {place.process_id} found no process 0 at coordinator={place.coordinator!r} within {timeout:g} s "
                f"({reason}): is it started, is this its address, and does the network let it through?"
            )
        time.sleep(0.05)

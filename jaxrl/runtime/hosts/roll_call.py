"""The processes of a group meet before JAX connects them: whoever is missing, there twice, or other than the rest is told of.

JAX itself aborts a process (SIGABRT, a page of stack) whose group is not as it says, and tells the others nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import time
from typing import Any

from jaxrl.runtime.hosts.place import Place

LONGEST = 65_536
"""Bytes of a message; what is longer does not come from jaxrl."""
GRACE = 5.0
"""Seconds that process 0's answer may take after its own time is over, and one message."""


def roll_call(place: Place, about: dict[str, Any], timeout: float) -> None:
    """Meet the others at the coordinator's address, and leave it free.

    Args:
      about: plain JSON data that must be the same in all processes: versions, say.
      timeout: seconds in which all must come.

    Raises:
      ValueError: they do not fit together; all are told the same, with what to change.
      TimeoutError: somebody did not come; the message says who.
      OSError: the coordinator's address is no place to meet.
    """
    mine = {"process_id": place.process_id, "num_processes": place.num_processes, "name": name_of_this(), "about": about}
    if place.process_id:
        _report(place, mine, timeout)
    else:
        _call(place, mine, timeout)


def name_of_this() -> str:
    return f"{socket.gethostname()}, pid {os.getpid()}"


def bind_address(place: Place) -> tuple[str, int]:
    """Where process 0 listens: at its own address, or, where that is a name, at all: a machine may know its name otherwise than
    others do."""
    host, port = place.address
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ("127.0.0.1" if place.is_local else "0.0.0.0"), port
    return host, port


# ------------------------------------------------------------------------------------------------------------------- process 0


def _call(place: Place, mine: dict[str, Any], timeout: float) -> None:
    """Wait for all the others, compare them, and tell each how that went."""
    late, reports = time.monotonic() + timeout, {0: mine}
    with contextlib.ExitStack() as open_until_told:
        connections: list[socket.socket] = []
        listener = open_until_told.enter_context(_listen(place))
        problem: str | None = None
        late_is_why = False
        while problem is None and len(reports) < place.num_processes:
            listener.settimeout(max(0.01, late - time.monotonic()))
            try:
                connection = open_until_told.enter_context(listener.accept()[0])
                connection.settimeout(GRACE)
                report = _receive_report(connection)
            except TimeoutError:
                if time.monotonic() >= late:
                    problem, late_is_why = _missing(place, reports, timeout), True
                continue
            except (OSError, ValueError):  # somebody who looks for open ports, say
                continue
            connections.append(connection)
            problem = why_unfit(reports, report)
            reports[report["process_id"]] = report
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"problem": problem, "late": late_is_why}).encode() + b"\n")
    if problem is not None:
        raise TimeoutError(problem) if late_is_why else ValueError(problem)


def _receive_report(connection: socket.socket) -> dict[str, Any]:
    report, kinds = _receive(connection), {"process_id": int, "num_processes": int, "name": str, "about": dict}
    if not all(isinstance(report.get(key), kind) for key, kind in kinds.items()):
        raise ValueError("no report of jaxrl's")
    return report


def _listen(place: Place) -> socket.socket:
    host, port = bind_address(place)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    except OSError as error:
        raise OSError(
            error.errno,
            f"process 0 cannot meet the others at coordinator={place.coordinator!r}: {error.strerror}. Give an address of this "
            "machine, and a port that is free; one other process that is number 0, too, would hold it",
        ) from None


def why_unfit(reports: dict[int, dict[str, Any]], new: dict[str, Any]) -> str | None:
    """Why a process cannot be one of the group of those that came before it, of which 0 is the first."""
    first, number = reports[0], new["process_id"]
    who = f"process {number} ({new['name']})"
    if new["num_processes"] != first["num_processes"]:
        return (
            f"{who} says that there are {new['num_processes']} processes, and process 0 ({first['name']}) that there are "
            f"{first['num_processes']}: give all the same num_processes"
        )
    if number in reports:
        return (
            f"two processes say that they are number {number}: {reports[number]['name']}, and {new['name']}: give each a "
            f"process_id of its own, 0 … {first['num_processes'] - 1}"
        )
    for name, value in first["about"].items():
        if new["about"].get(name) != value:
            return f"{who} has {name} {new['about'].get(name)}, and process 0 ({first['name']}) has {value}: install the same"
    return None


def _missing(place: Place, reports: dict[int, Any], timeout: float) -> str:
    absent = [str(number) for number in range(place.num_processes) if number not in reports]
    shown = ", ".join(absent[:8]) + (", …" if len(absent) > 8 else "")
    return (
        f"{len(absent)} of {place.num_processes} processes did not come to {place.coordinator} within {timeout:g} s: number "
        f"{shown}. See what they say; all need the same coordinator, and a way to it (firewalls)"
    )


# -------------------------------------------------------------------------------------------------------------------- the others


def _report(place: Place, mine: dict[str, Any], timeout: float) -> None:
    """Come to process 0, and hear how it went."""
    with _connect(place, timeout) as connection:
        try:
            connection.settimeout(timeout + GRACE)  # process 0 may have come later, and waits as long
            connection.sendall(json.dumps(mine).encode() + b"\n")
            answer = _receive(connection)
        except (OSError, ValueError):
            raise TimeoutError(
                f"process {place.process_id} came to coordinator={place.coordinator!r}, and process 0 did not answer: see what "
                "it says; or another program has that port"
            ) from None
    if (problem := answer.get("problem")) is not None:
        raise TimeoutError(problem) if answer.get("late") else ValueError(problem)


def _connect(place: Place, timeout: float) -> socket.socket:
    late = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection(place.address, max(0.01, late - time.monotonic()))
        except socket.gaierror as error:
            reason: str | None = error.strerror  # a name that a cluster will know in a moment
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() >= late:
            raise TimeoutError(
                f"process {place.process_id} found no process 0 at coordinator={place.coordinator!r} within {timeout:g} s "
                f"({reason}): is it started, is this its address, and does the network let it through?"
            )
        time.sleep(0.05)


def _receive(connection: socket.socket) -> dict[str, Any]:
    """One line of JSON."""
    text = b""
    while not text.endswith(b"\n") and len(text) < LONGEST:
        part = connection.recv(4096)
        if not part:
            raise ValueError("the connection ended")
        text += part
    message = json.loads(text)
    if not isinstance(message, dict):
        raise ValueError("no message of jaxrl's")
    return message

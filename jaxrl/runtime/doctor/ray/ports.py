"""Ports of other machines: do their processes answer?

Needs the standard library only, since it is sent to the nodes of a cluster by value.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

T = TypeVar("T")

HOP = 5.0
"""Seconds that a name may take to resolve, a port to accept a connection, and its process to answer."""

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Begin of a conversation with gRPC, which all of Ray's ports speak. It is answered before any token is asked for."""

REFUSED, NO_ANSWER, SILENT, UNREACHABLE = "refused", "no answer", "silent", "unreachable"
"""Faults of a port. Silent: the system accepts connections, and the process behind the port does not answer."""

TEXTS = {
    REFUSED: "refuses connections",
    NO_ANSWER: f"does not answer within {HOP:g} s",
    SILENT: f"accepts connections, but its process does not answer within {HOP:g} s",
    UNREACHABLE: "cannot be reached: no route leads to its machine",
}


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address such as ``10.0.0.1:6379`` or ``[fd00::1]:6379``.

    Raises:
      ValueError: it is not such an address.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or "/" in host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"{address!r} is not HOST:PORT, such as 10.0.0.1:6379")
    return host, int(port)


def resolve(host: str) -> str:
    """Return the IP address of a host.

    Raises:
      OSError: the name is unknown, or finding out takes too long.
    """
    return str(within_limit(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]))


def within_limit(function: Callable[[], T]) -> T:
    """Call a function that the system may block, such as a name server that is away or a file system.

    Raises:
      TimeoutError: it takes longer than ``HOP`` seconds. It is left to itself then.
    """
    outcomes = queue.SimpleQueue[tuple[T | None, Exception | None]]()

    def call() -> None:
        try:
            outcomes.put((function(), None))
        except Exception as error:
            outcomes.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    try:
        value, error = outcomes.get(timeout=HOP)
    except queue.Empty:
        raise TimeoutError(f"no answer within {HOP:g} s") from None
    if error is not None:
        raise error
    return cast(T, value)


def fault_of(host: str, port: int) -> str:
    """Return how a port fails, or an empty string if a process answers there."""
    try:
        connection = socket.create_connection((host, port), HOP)
    except TimeoutError:
        return NO_ANSWER
    except ConnectionRefusedError:
        return REFUSED
    except OSError:
        return UNREACHABLE
    with connection:
        try:
            connection.sendall(HELLO)
            connection.recv(1)
        except TimeoutError:
            return SILENT
        except OSError:  # closed by a process that expects something else, such as TLS
            pass
    return ""


def faults_of(ports: list[tuple[str, int]]) -> list[str]:
    """Return how each of these ports fails, all asked at the same time."""
    with ThreadPoolExecutor(max(1, min(64, len(ports)))) as threads:
        return [*threads.map(lambda port: fault_of(*port), ports)]

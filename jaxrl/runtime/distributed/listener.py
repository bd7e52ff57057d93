"""``Door``: process 0's server for the rendezvous. Silent and foreign connections do not delay the group's processes."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any

from jaxrl.runtime.distributed.messages import LONGEST, Forged, new_nonce, opened, sealed

PATIENCE = 5.0
"""Seconds in which a connection must send a whole report."""

MAX_SILENT = 256
"""Maximum number of connections that have not reported yet. The oldest of more is closed."""


class Visitor:
    """A connection to process 0."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.late = connection, time.monotonic() + PATIENCE
        self.nonce, self.text = new_nonce(), b""
        self.report: dict[str, Any] = {}
        connection.setblocking(False)
        self.send(b'{"nonce": "%s"}\n' % self.nonce.encode())

    def send(self, line: bytes) -> None:
        """Send a line, short enough for the socket's buffer. On a closed connection it is lost."""
        with contextlib.suppress(OSError):
            self.connection.send(line)

    def answer(self, data: Mapping[str, Any], secret: bytes) -> None:
        self.send(sealed(data, secret, str(self.report.get("nonce"))))

    def hear(self, secret: bytes) -> bool:
        """Read what has arrived. True if the report is complete. Raise Forged, OSError or ValueError if it is not one."""
        part = self.connection.recv(LONGEST)
        self.text += part
        if not part or len(self.text) > LONGEST:
            raise ValueError("it is not a report")
        if not self.text.endswith(b"\n"):
            return False
        report = opened(self.text, secret, self.nonce)
        if not is_report(report):
            raise ValueError("it is not a report")
        self.report = report
        return True


class Door:
    """Server that reads all connections to a listening socket concurrently, until ``close``."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self._listener, self._secret = listener, secret
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._silent: list[Visitor] = []
        self.heard: list[Visitor] = []
        """Connections that have reported, in order, and wait for an answer."""
        self.forged = 0
        """Number of reports with another secret."""

    def next_report(self, late: float) -> dict[str, Any] | None:
        """Return the next report; None if none arrives until ``late``, on the clock of ``time.monotonic``."""
        while (current_time := time.monotonic()) < late:
            for visitor in [visitor for visitor in self._silent if visitor.late <= current_time]:
                self._dismiss(visitor)
            until = min([late, *(visitor.late for visitor in self._silent)])
            for key, _ in self._selector.select(max(0.0, until - current_time)):
                if key.data is None:
                    self._let_in()
                elif (visitor := key.data) in self._silent and self._hears(visitor):
                    return visitor.report
        return None

    def answer(self, data: Mapping[str, Any]) -> None:
        """Send an answer to all that have reported."""
        for visitor in self.heard:
            visitor.answer(data, self._secret)

    def close(self) -> None:
        self._selector.close()
        for visitor in (*self._silent, *self.heard):
            visitor.connection.close()

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):  # it closed again, or too many files are open
            self._silent.append(visitor := Visitor(self._listener.accept()[0]))
            self._selector.register(visitor.connection, selectors.EVENT_READ, visitor)
        if len(self._silent) > MAX_SILENT:
            self._dismiss(self._silent[0])

    def _hears(self, visitor: Visitor) -> bool:
        """Read from a visitor. Return True if its report is now complete."""
        try:
            if not visitor.hear(self._secret):
                return False
        except Forged:
            self.forged += 1
            visitor.answer({}, self._secret)  # shows it that the secrets differ
            self._dismiss(visitor)
            return False
        except (OSError, ValueError):  # for example a port scanner
            self._dismiss(visitor)
            return False
        self._silent.remove(visitor)
        self._selector.unregister(visitor.connection)
        self.heard.append(visitor)
        return True

    def _dismiss(self, visitor: Visitor) -> None:
        self._silent.remove(visitor)
        self._selector.unregister(visitor.connection)
        visitor.connection.close()


def is_report(data: Mapping[str, Any]) -> bool:
    """Return True if the data can be the report of a jaxrl process, in this group or another."""
    kinds = {"process_id": int, "num_processes": int, "name": str, "about": dict, "nonce": str}
    if not all(type(data.get(key)) is kind for key, kind in kinds.items()):
        return False
    return 0 <= data["process_id"] < data["num_processes"]

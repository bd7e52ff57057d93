"""Roll calls of processes, as threads, and strangers that come to them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jaxrl.runtime.distributed.cluster import ProcessPlace
from jaxrl.runtime.distributed.messages import parsed, read_line, sealed
from jaxrl.runtime.distributed.rendezvous import roll_call
from tests.helpers.ports import free_port
from tests.helpers.processes.children import soon


def outcomes(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run all calls at the same time. Return the result or the error of each."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(outcome, calls))


def called(
    *processes: tuple[int, int], about: Any = (), timeout: float = 20.0, secrets: tuple[bytes, ...] = (b"",) * 9
) -> list[Any]:
    """Hold a roll call of processes (count, number), each with versions and a secret. Return the outcomes."""
    at = f"127.0.0.1:{free_port()}"
    versions = about or [{"jax": "1"}] * len(processes)
    return outcomes(
        [
            lambda count=count, number=number, own=own, secret=secret: roll_call(  # type: ignore[misc]
                ProcessPlace(at, count, number), own, timeout, secret
            )
            for (count, number), own, secret in zip(processes, versions, secrets, strict=False)
        ]
    )


class Meeting:
    """Process 0 of two, in a thread, and strangers that connect to it."""

    def __init__(self, secret: bytes = b"", timeout: float = 60.0) -> None:
        self.at, self.secret = ProcessPlace(f"127.0.0.1:{free_port()}", 2, 0), secret
        self.ends: list[Any] = []
        self.strangers: list[socket.socket] = []
        call = lambda: roll_call(self.at, {"jax": "1"}, timeout, secret)  # noqa: E731
        self.first = threading.Thread(target=lambda: self.ends.extend(outcomes([call])), daemon=True)
        self.first.start()

    def come(self) -> tuple[socket.socket, str]:
        """Return a connection, and the nonce that process 0 sends."""

        def listens() -> bool:
            with contextlib.suppress(ConnectionRefusedError):
                self.strangers.append(socket.create_connection(self.at.address, 30))
                return True
            return False

        assert soon(listens)
        stranger = self.strangers[-1]
        return stranger, str(parsed(read_line(stranger, time.monotonic() + 30))["nonce"])

    def end(self) -> Any:
        """Let process 1 join. Return process 0's result."""
        assert self.ends == []
        roll_call(self.at._replace(process_id=1), {"jax": "1"}, 60.0, self.secret)
        self.first.join(60)
        for stranger in self.strangers:
            stranger.close()
        return self.ends


def report(theirs: str, secret: bytes = b"", **changes: Any) -> bytes:
    mine = {"process_id": 1, "num_processes": 2, "name": "a", "about": {"jax": "1"}, "nonce": "mine"}
    return sealed({**mine, **changes}, secret, theirs)

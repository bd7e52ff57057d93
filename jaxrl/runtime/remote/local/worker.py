"""Main program of a worker of the local engine: it holds an object and answers calls in their order. Does not import jax."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from jaxrl.envs.subprocess.child import attend
from jaxrl.runtime.remote.holder import Exceptional, Holder
from jaxrl.runtime.remote.local.wire import (
    Answer,
    Call,
    End,
    Forget,
    Hello,
    Lender,
    Mailbox,
    Raised,
    Returned,
    Shared,
    Start,
    frame,
    send_some,
)
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.remote.versions import short_versions


class LocalWorker:
    """Connection to the owner, and the object."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner, self._mailbox, self._lender, self._holder = owner, Mailbox(owner), Lender(), Holder()
        self._shared: dict[int, Packed] = {}
        self._returned: deque[int] = deque()
        """Blocks to return to the owner. Garbage collection appends to it."""

    def serve(self) -> None:
        """Answer messages until the owner ends."""
        self._send(Hello(short_versions()))
        for message in self._messages():
            match message:
                case Start(parcel):
                    self._answer(self._holder.start(self._open(parcel)))
                case Call(method, references, parcel):
                    self._answer(self._holder.call(method, self._open(parcel), [self._shared[n] for n in references]))
                case Shared(number, parcel):
                    self._shared[number] = self._mailbox.open(parcel)
                case Forget(numbers):
                    for number in numbers:
                        self._shared.pop(number, None)
                case Returned(blocks):
                    self._lender.take_back(blocks)
                case End():
                    return

    def _messages(self) -> Iterator[Any]:
        while True:
            messages = deque(self._mailbox.read())
            while messages:
                yield messages.popleft()  # keep no reference to its memory

    def _open(self, parcel: Any) -> Packed:
        return self._mailbox.open(parcel, self._returned.append)

    def _answer(self, outcome: Packed | Exceptional) -> None:
        if self._returned:
            self._send(Returned(tuple(self._returned.popleft() for _ in range(len(self._returned)))))
        if isinstance(outcome, Exceptional):
            return self._send(Raised(*outcome))
        try:
            parcel, handles = self._lender.parcel(outcome)
        except (MemoryError, OSError) as error:
            return self._send(Raised(type(error).__name__, f"its result is too large: {error}", str(error)))
        self._send(Answer(parcel), handles)

    def _send(self, message: Any, handles: Any = ()) -> None:
        data = frame(message)
        if (sent := send_some(self._owner, data, handles)) < len(data):
            self._owner.sendall(memoryview(data)[sent:])


def serve(connection: Connection) -> None:
    """Serve the owner at the other end of the connection."""
    owner = socket.socket(fileno=connection.fileno())
    try:
        LocalWorker(owner).serve()
    except (EOFError, ConnectionError):  # the owner has ended
        pass
    finally:
        owner.detach()  # the connection closes it


if __name__ == "__main__":
    attend(serve)

"""``LocalProcess``: the owner's end of a worker of the local engine. Does not import jax."""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.envs.subprocess.child import ENDING, GRACE, Child
from jaxrl.runtime.remote.calls import START, CallQueue, Request
from jaxrl.runtime.remote.local.wire import (
    Call,
    End,
    Forget,
    Lender,
    Lent,
    Mailbox,
    Parcel,
    Returned,
    Shared,
    Start,
    frame,
    send_some,
)
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.system.clock import STANDSTILL


class SharedValue:
    """Value in shared memory that calls may refer to. Its memory is freed with this object, and by workers that map it."""

    def __init__(self, number: int, packed: Packed) -> None:
        self.number, self._lender = number, Lender()
        self.parcel, self.handles = self._lender.parcel(packed)

    def __del__(self) -> None:
        if hasattr(self, "_lender"):
            self._lender.close()


class LocalProcess:
    """A process that holds an object, and the messages on their way to it. Its methods are called with the engine's lock."""

    def __init__(
        self,
        queue: CallQueue,
        lender: Lender,
        selector: selectors.BaseSelector,
        variables: Mapping[str, str],
        log: Path | None,
    ) -> None:
        """``selector`` is that of the engine, which calls ``flush`` when the connection has room."""
        self.queue, self._lender, self._selector = queue, lender, selector
        self.child = Child("jaxrl.runtime.remote.local.worker", variables=variables, log=log)
        self._socket = socket.socket(fileno=self.child.connection.fileno())
        self.mailbox = Mailbox(self._socket, socket.MSG_DONTWAIT)
        self._outbox: deque[tuple[Any, Sequence[int]]] = deque()
        self._lent, self._known = set[int](), set[int]()
        """Blocks that the process reads; numbers of shared values that it has."""
        self.since: float | None = None
        self.stopped: float | None = None
        """Times, on the clock of ``Ran``, of the last answer and of the SIGSTOP that stopped it."""
        self.deadline: float | None = None
        """Time at which it is killed if it has not ended; None unless it is ending."""
        self.is_open = self.is_watched = True
        selector.register(self._socket, selectors.EVENT_READ, self)

    @property
    def has_room(self) -> bool:
        """See ``calls.Worker``."""
        return not self._outbox

    def send(self, request: Request) -> None:
        """See ``calls.Worker``."""
        if request.method == START:
            return self._post(Start(Parcel(request.body.pickle, tuple(request.body.buffers))))
        parcel, handles = request.body
        for value in request.references:
            if value.number not in self._known:
                self._known.add(value.number)
                self._post(Shared(value.number, value.parcel), value.handles)
        if isinstance(parcel.buffers, Lent):
            self._lent.add(parcel.buffers.block)
        return self._post(Call(request.method, tuple(value.number for value in request.references), parcel), handles)

    def _post(self, message: Any, handles: Sequence[int] = ()) -> None:
        self._outbox.append((memoryview(frame(message)), handles))
        if len(self._outbox) == 1:
            self.flush()

    def flush(self) -> bool:
        """Send as much as the connection takes. Return whether that is all."""
        before = len(self._outbox)
        self._send_outbox()
        if self.is_watched and (self._outbox or before > 1):
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
            self._selector.modify(self._socket, wanted, self)
        return not self._outbox

    def _send_outbox(self) -> None:
        while self._outbox:
            data, handles = self._outbox[0]
            try:
                sent = send_some(self._socket, data, handles, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:  # the reader of the connection reports its end
                return self._outbox.clear()
            if sent < len(data):
                self._outbox[0] = data[sent:], ()
            else:
                self._outbox.popleft()

    def return_blocks(self, blocks: Sequence[int]) -> None:
        """Return blocks of the process, which this side has finished reading."""
        self._post(Returned(tuple(blocks)))

    def forget(self, numbers: Sequence[int]) -> None:
        """Report shared values that no longer exist."""
        if known := self._known.intersection(numbers):
            self._known -= known
            self._post(Forget(tuple(known)))

    def take_back(self, blocks: Sequence[int]) -> None:
        """Reuse blocks that the process has finished reading."""
        self._lent.difference_update(blocks)
        self._lender.take_back(blocks)

    def take_back_all(self) -> None:
        """Reuse all blocks of a process that has ended, except those of calls that another process will execute."""
        calls = [*self.queue.waiting, *self.queue.sent]
        kept = {request.body[0].buffers.block for request in calls if _is_lent(request)}
        self.take_back([*(self._lent - kept)])

    def leave(self) -> None:
        """Ask it to end."""
        self.deadline = time.monotonic() + GRACE
        self._post(End())

    def unwatch(self) -> None:
        """Receive nothing more from it. It has a short time to end."""
        if self.is_watched:
            self.is_watched = False
            self._selector.unregister(self._socket)
        self.deadline = min(self.deadline or math.inf, time.monotonic() + ENDING)

    @property
    def is_over(self) -> bool:
        """Return whether it has ended, or has had the time to."""
        return not self.is_open or self.child.has_ended or time.monotonic() > (self.deadline or math.inf)

    def end(self) -> None:
        """Kill it, and close the connection."""
        if self.is_open:
            self.unwatch()
            self.is_open = False
            self._outbox.clear()
            self._socket.detach()
            self.mailbox.close()
            self.child.release()

    def trouble(self, elapsed: float) -> tuple[str, bool] | None:
        """Return its fault, and whether it took too long, if it has one. ``elapsed`` is the time on the clock of ``Ran``."""
        if self.child.has_ended and not self.child.has_said:  # a process that it started keeps its connection open
            return self.child.how_it_ended(0.0), False
        if not self.queue.sent or self.since is None:
            self.since = elapsed
        if not self.child.is_stopped:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = elapsed
        elif elapsed - self.stopped > STANDSTILL:
            return "was stopped (SIGSTOP)", False
        if (timeout := self.queue.time_limit) is not None and elapsed - self.since > timeout:
            return f"did not finish in {timeout:g} s, and was killed: it hangs, or needs a larger timeout", True
        return None


def _is_lent(request: Request) -> bool:
    return request.method != START and isinstance(request.body[0].buffers, Lent)

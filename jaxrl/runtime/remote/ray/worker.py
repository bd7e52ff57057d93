"""``RayWorker``: the owner's end of an actor that holds an object."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from jaxrl.envs.subprocess.child import append_to_log
from jaxrl.runtime.remote.calls import START, CallQueue, Outcomes, Request
from jaxrl.runtime.remote.ray.actor import Wire, from_ray
from jaxrl.runtime.remote.values import Packed, unpack
from jaxrl.runtime.remote.versions import difference, full_versions, short_versions


class Engine(Protocol):
    """Methods of ``RayEngine`` that a worker calls."""

    ray: Any
    inbox: Any
    patience: float

    def lose(self, worker: Any, how: str) -> Outcomes: ...

    def refuse(self, queue: CallQueue, why: str) -> Outcomes: ...

    def note_once(self, text: str) -> None: ...


class RayWorker:
    """Actor that holds an object, and the requests that it has."""

    def __init__(self, queue: CallQueue, actor: Any, engine: Engine) -> None:
        self.queue, self._actor, self._engine = queue, actor, engine
        self._asked, self._done = deque[int](), dict[int, Any]()
        """Numbers of requests without an answer, in order, and answers that came before those of older requests."""
        self._next = 0
        self.since: float | None = None
        self.has_place = False
        """It was found to have a place. This is looked up once it has waited long."""
        self.begun = False
        """Its process has started."""
        self.is_open, self.has_room = True, True
        self.how = "was lost"
        """Predicate for the end of the actor."""
        self._expect(actor.versions.remote(), self._compare)
        watch = actor.watch.remote(queue.job.resources.memory)
        self._expect(watch, self._too_large)
        if queue.job.log is not None:
            self._follow(b"")
        self.gone = watch.future()
        """Completed when the actor has ended."""

    def send(self, request: Request) -> None:
        """See ``calls.Worker``."""
        if request.method == START:
            reference = self._actor.start.remote(request.body)
        else:
            shared = [value.reference for value in request.references]
            reference = self._actor.call.remote(request.body, *shared)
        number = self._next
        self._next += 1
        self._asked.append(number)
        self._expect(reference, lambda outcome: self._answered(number, outcome))

    def call_beside(self, method: str, body: Any) -> Future[Any]:
        """Call a method in another thread of the actor, beside the call in progress."""
        future: Future[Any] = Future()

        def answered(data: Wire) -> Outcomes:
            outcome = from_ray(data)
            return [lambda: future.set_result(unpack(outcome) if isinstance(outcome, Packed) else outcome)]

        self._expect(self._actor.call_beside.remote(method, body), answered)
        return future

    def end(self) -> None:
        """See ``calls.Worker``."""
        if self.is_open:
            self.is_open = False
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._engine.ray.kill(self._actor)

    def _expect(self, reference: Any, handle: Callable[[Any], Outcomes]) -> None:
        """Call ``handle`` with a result, in the engine's thread."""
        reference.future().add_done_callback(lambda done: self._engine.inbox.put((self, done, handle)))

    def lost(self, error: BaseException) -> Outcomes:
        """Handle an error of Ray: the actor, or its machine, is gone."""
        return self._engine.lose(self, f"was lost ({cause_of(error)})")

    def _answered(self, number: int, data: Wire) -> Outcomes:
        self._done[number] = from_ray(data)
        outcomes: Outcomes = []
        while self._asked and self._asked[0] in self._done and self.is_open:
            self.since = None
            outcomes += self.queue.answered(self._done.pop(self._asked.popleft()))
        return outcomes

    def _compare(self, versions: dict[str, str]) -> Outcomes:
        self.begun, self.since = True, None
        if unequal := difference(short_versions(), versions):
            return self._engine.refuse(self.queue, f"the cluster has other versions: {unequal}")
        if unequal := difference(full_versions(), versions):
            self._engine.note_once(f"the cluster has other versions: {unequal}")
        return []

    def _follow(self, output: bytes | None) -> Outcomes:
        """Append output to the log, and ask for more; None: the actor writes it there itself."""
        log = self.queue.job.log
        if output is not None and log is not None:
            append_to_log(log, output)
            self._expect(self._actor.output.remote(), self._follow)
        return []

    def _too_large(self, how: str) -> Outcomes:
        return self._engine.lose(self, how)

    def trouble(self, elapsed: float) -> str | None:
        """Return its fault if it takes too long. ``elapsed`` is the time on the clock of ``Ran``."""
        if not self.queue.sent or self.since is None:
            self.since = elapsed
        timeout = self.queue.time_limit if self.begun else None
        if timeout is None or elapsed - self.since <= timeout:
            return None
        return f"did not finish in {timeout:g} s, and was killed: it hangs, or needs a larger timeout"

    def is_late(self, elapsed: float) -> bool:
        """Return whether it has waited too long for a place, or for its process to start there."""
        return not self.begun and self.since is not None and elapsed - self.since > self._engine.patience

    def look_for_place(self, elapsed: float) -> bool:
        """Return whether it has a place by now. If so, it is late only if its process does not start from now on."""
        if self.has_place or not has_process(self._actor):
            return False
        self.has_place, self.since = True, elapsed
        return True


def has_process(actor: Any) -> bool:
    """Return whether a machine has a process for an actor, even one that does nothing; False if Ray does not tell."""
    with contextlib.suppress(Exception):  # the cluster may be gone
        from ray._private import state  # the public way needs Ray's dashboard

        return bool(state.actors(actor._actor_id.hex())["Address"]["Port"])
    return False


def cause_of(error: BaseException) -> str:
    """Return in one line what ended an actor, and where: Ray's message has ten lines, and the first does not say it."""
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__).rstrip(".")
    address, process = (re.search(rf"^\s*{name}: (\S+)", text, re.MULTILINE) for name in ("ip", "pid"))
    if address is None or process is None:
        return first
    if "its node has died" in text:
        reason = re.search(r"node was terminated [a-z]+: (.+)", text)
        return f"its node {address[1]} has died{f': {reason[1]}' if reason else ''}".rstrip(".")
    if "its worker process has died" in text:
        return f"process {process[1]} on {address[1]} has died"
    return f"{first}, on {address[1]}"

"""``LocalEngine``: remote objects in processes of this machine. Does not import jax."""

from __future__ import annotations

import contextlib
import functools
import itertools
import selectors
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl.envs.subprocess.child import end_all, kill_all
from jaxrl.envs.subprocess.inbox import Garbled
from jaxrl.runtime.remote.calls import CallQueue, Job, Outcomes, Request, complete
from jaxrl.runtime.remote.engine import Engine, closed
from jaxrl.runtime.remote.errors import WorkerLost
from jaxrl.runtime.remote.holder import Exceptional
from jaxrl.runtime.remote.local.process import LocalProcess, SharedValue
from jaxrl.runtime.remote.local.wire import Answer, End, Hello, Lender, Lent, Raised, Returned
from jaxrl.runtime.remote.resources import WEIGH, Gpus, Resources, check_memory, memory_in_use
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.remote.versions import difference, short_versions
from jaxrl.runtime.system.clock import LOOK, Ran
from jaxrl.runtime.system.cores import cpu_worker

WINDOW = 1024
"""Number of calls of an object that are sent before their answers, as far as the connection takes them."""

ENDED = 0.005
"""Seconds between two looks at processes whose connection has ended."""


class LocalEngine(Engine):
    """Starts processes, and receives their answers in a thread of this process."""

    hint = "ask for less, end some of them, or say how many to allow, as in remote.open(cpus=8)"

    def __init__(self, total: Resources, gpus: Sequence[str], log_folder: Path | None, note: Callable[[str], None]) -> None:
        super().__init__("jaxrl-remote", log_folder, note)
        self.total, self._gpus = total, Gpus(gpus)
        self._held = dict[CallQueue, tuple[Lender, dict[str, float]]]()
        """Object -> its blocks of memory, and its share of each GPU."""
        self._selector = selectors.DefaultSelector()
        self._asleep, self._bell = socket.socketpair()  # a late ring of a bare descriptor might reach another file
        self._selector.register(self._asleep, selectors.EVENT_READ)
        self._ending = list[LocalProcess]()
        """Processes that were asked to end, or whose connection has ended."""
        self._read, self._forgotten = deque[tuple[LocalProcess, int]](), deque[int]()
        """Blocks to return to their processes; numbers of shared values that were freed. Garbage collection appends to both in
        any thread, so they take no lock."""
        self._numbers, self._ran, self._weighed = itertools.count(1), Ran(), time.monotonic()
        self._thread.start()

    # -------------------------------------------------------------------------------------------------- for the user's threads

    def start(self, job: Job) -> CallQueue:
        """See ``Engine``."""
        lender, shares = Lender(), self._gpus.take(job.resources.gpus)
        variables = cpu_worker(max(1, int(job.resources.cpus))) if not shares else {}
        variables |= {"CUDA_VISIBLE_DEVICES": ",".join(shares), "PYTHONUNBUFFERED": "1"}

        def start_worker(queue: CallQueue) -> LocalProcess:
            self._held[queue] = lender, shares
            return LocalProcess(queue, lender, self._selector, variables, job.log)

        try:
            return self._enter(job._replace(body=job.body.copy()), start_worker, WINDOW)
        except BaseException:
            self._gpus.give_back(shares)
            raise

    def request(self, queue: CallQueue, method: str, packed: Packed, references: Sequence[SharedValue]) -> Request:
        """See ``Engine``."""
        held = self._held.get(queue)
        lender = Lender() if held is None else held[0]  # the queue of an object that has ended refuses the request
        parcel, handles = lender.parcel(packed)
        blocks = [parcel.buffers.block] if isinstance(parcel.buffers, Lent) else []
        discard = lender.close if held is None else functools.partial(lender.take_back, blocks)
        return Request(method, (parcel, handles), references, discard)

    def put(self, packed: Packed) -> SharedValue:
        """See ``Engine``."""
        value = SharedValue(next(self._numbers), packed)
        weakref.finalize(value, self._forgotten.append, value.number).atexit = False
        return value

    def ring(self) -> None:
        """See ``Engine``."""
        with contextlib.suppress(OSError):  # it has enough to wake up, or has ended
            self._bell.send(b".", socket.MSG_DONTWAIT)

    # ----------------------------------------------------------------------------------------------------- the engine's thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._turn(self._selector.select(ENDED if self._ending else LOOK))
        finally:
            self._is_closing = True
            with self.lock:
                kill_all([queue.worker.child for queue in self._queues if not queue.is_idle])
                end_all([queue.worker.child for queue in self._queues if queue.is_idle], End())
                outcomes: Outcomes = []
                for queue in [*self._queues]:
                    outcomes += self._end_now(queue, "its cluster was closed")
                    queue.worker.end()  # also of an object that was already asked to end
                    self.settled(queue, [])
                self._selector.close()
                self._asleep.close()
                self._bell.close()
            complete(outcomes)

    def _turn(self, events: Sequence[Any]) -> None:
        """Handle events: messages, connections with room, and what is due."""
        outcomes: Outcomes = []
        with self.lock:
            for key, mask in events:
                process: LocalProcess | None = key.data
                if process is None:
                    self._asleep.recv(4096)
                elif process.is_watched:
                    if mask & selectors.EVENT_WRITE and process.flush():
                        process.queue.fill()
                    if mask & selectors.EVENT_READ:
                        outcomes += self._hear(process)
            outcomes += self._tidy()
            if self._ran.is_due:
                outcomes += self._look(self._ran.look())
        complete(outcomes)

    def _hear(self, process: LocalProcess) -> Outcomes:
        """Receive what has arrived from a process, possibly a part of a message."""
        try:
            messages = process.mailbox.read()
        except BlockingIOError:
            return []
        except (EOFError, OSError):
            process.unwatch()
            self._ending.append(process)
            return []
        except Garbled as error:
            return self.lose(process, str(error))
        outcomes: Outcomes = []
        for message in messages:
            match message:
                case Hello(versions):
                    if unequal := difference(short_versions(), versions):
                        return self._end_now(process.queue, f"its worker has other versions: {unequal}")
                case Returned(blocks):
                    process.take_back(blocks)
                case Answer() | Raised() if process.queue.sent:
                    process.since = None
                    outcomes += self.settled(process.queue, process.queue.answered(self._outcome(process, message)))
                    if not process.is_watched:  # the object could not be made, and answers to its calls mean nothing
                        return outcomes
                case _:
                    return outcomes + self.lose(process, str(Garbled()))
        return outcomes

    def _outcome(self, process: LocalProcess, message: Answer | Raised) -> Packed | Exceptional:
        if isinstance(message, Raised):
            return Exceptional(*message)
        read = self._read
        try:
            return process.mailbox.open(message.parcel, lambda block: read.append((process, block)))
        except (OSError, ValueError, IndexError) as error:  # too many open files or maps
            return Exceptional("OSError", f"its result cannot be mapped into this process: {error}", str(error))

    def _tidy(self) -> Outcomes:
        """Handle processes that have ended, and what garbage collection found."""
        outcomes: Outcomes = []
        for process in [each for each in self._ending if each.is_over]:
            self._ending.remove(process)
            if process.is_open and process.queue.error is None:
                outcomes += self.lose(process, process.child.how_it_ended(0.0))
            else:  # it was asked to end
                process.end()
                self.settled(process.queue, [])
        outcomes += self._end_idle()
        while self._read:
            process, block = self._read.popleft()
            if process.is_watched:
                process.return_blocks([block])
        if self._forgotten:
            numbers = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
            for queue in self._queues:
                queue.worker.forget(numbers)
        return outcomes

    def _look(self, elapsed: float) -> Outcomes:
        """Handle processes that hang, are stopped, or use too much memory."""
        outcomes: Outcomes = []
        for process in [queue.worker for queue in self._queues if queue.error is None]:
            if process.is_watched and (trouble := process.trouble(elapsed)):
                how, is_late = trouble
                outcomes += self.lose(process, how, TimeoutError if is_late else WorkerLost)
        if time.monotonic() - self._weighed < WEIGH:
            return outcomes
        self._weighed = time.monotonic()
        limited = {queue.worker.child.process.pid: queue for queue in self._queues if queue.job.resources.memory}
        for pid, used in memory_in_use(limited).items():
            queue = limited[pid]
            if queue.worker.is_watched and (fault := check_memory(used, queue.job.resources.memory)):
                outcomes += self.lose(queue.worker, fault)
        return outcomes

    def lose(self, worker: LocalProcess, how: str, kind: type[Exception] = WorkerLost) -> Outcomes:
        """See ``Engine``."""
        worker.child.write_log(f"{worker.queue.job.name} {how}")
        outcomes = super().lose(worker, how, kind)
        worker.take_back_all()
        return outcomes

    def _end(self, queue: CallQueue, why: str) -> Outcomes:
        """End an object: an idle one by itself, a busy one now."""
        if queue.error is not None or not queue.is_idle:
            return self._end_now(queue, why)
        queue.error = closed(queue, why)
        queue.worker.leave()
        self._ending.append(queue.worker)
        return []

    def _free(self, queue: CallQueue) -> None:
        lender, shares = self._held.pop(queue)
        lender.close()
        self._gpus.give_back(shares)
        queue.gone.set()

"""``LocalEngine``: remote objects in processes of this machine. Does not import jax."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl.envs.subprocess.child import GRACE, end_all, kill_all
from jaxrl.envs.subprocess.inbox import Garbled
from jaxrl.runtime.remote.calls import CallQueue, Job, Outcomes, Request, complete
from jaxrl.runtime.remote.errors import WorkerLost
from jaxrl.runtime.remote.holder import Exceptional
from jaxrl.runtime.remote.local.process import LocalProcess, SharedValue
from jaxrl.runtime.remote.local.wire import Answer, End, Hello, Lender, Lent, Raised, Returned
from jaxrl.runtime.remote.resources import Gpus, Resources, memory_in_use, show_size
from jaxrl.runtime.remote.values import Packed
from jaxrl.runtime.remote.versions import difference, short_versions
from jaxrl.runtime.system.clock import LOOK, Ran
from jaxrl.runtime.system.cores import cpu_worker

WINDOW = 1024
"""Number of calls of an object that are sent before their answers, as far as the connection takes them."""

WEIGH = 1.0
"""Seconds between two checks of the memory that objects use."""

ENDED = 0.005
"""Seconds between two looks at processes whose connection has ended."""


class LocalEngine:
    """Starts processes, and receives their answers in a thread of this process."""

    def __init__(self, total: Resources, gpus: Sequence[str], log_folder: Path | None, note: Callable[[str], None]) -> None:
        self.total, self._gpus, self._log_folder, self.note = total, Gpus(gpus), log_folder, note
        self.hint = "ask for less, end some of them, or say how many to allow, as in remote.open(cpus=8)"
        if log_folder is not None:
            log_folder.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self._queues: dict[CallQueue, tuple[Lender, dict[str, float]]] = {}
        self._selector = selectors.DefaultSelector()
        self._asleep, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        self._selector.register(self._asleep, selectors.EVENT_READ)
        self._ending = list[LocalProcess]()
        """Processes that were asked to end, or whose connection has ended."""
        self._let_go = deque[tuple[CallQueue, str]]()
        self._read, self._forgotten = deque[tuple[LocalProcess, int]](), deque[int]()
        """Objects to end when they are idle; blocks of processes that are no longer read here; numbers of shared values that no
        longer exist. Garbage collection appends to these in any thread, so they take no lock."""
        self._numbers, self._ran, self._weighed = itertools.count(1), Ran(), time.monotonic()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="jaxrl-remote", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------------------------------------------- for the user's threads

    def start(self, name: str, packed: Packed, resources: Resources, restarts: int, timeout: float | None) -> CallQueue:
        """Start a process for an object."""
        if self._is_closing:
            raise RuntimeError("this cluster is closed")
        lender, shares = Lender(), self._gpus.take(resources.gpus)
        variables = cpu_worker(max(1, int(resources.cpus))) if not shares else {}
        variables |= {"CUDA_VISIBLE_DEVICES": ",".join(shares), "PYTHONUNBUFFERED": "1"}
        log = None if self._log_folder is None else self._log_folder / f"{name.replace(' ', '-').lower()}.log"

        def start_worker(queue: CallQueue) -> LocalProcess:
            return LocalProcess(queue, lender, self._selector, variables, log)

        job = Job(name, packed.copy(), resources, restarts, timeout)
        where = "" if log is None else f": its output is in {log}"
        with self.lock:
            try:
                queue = CallQueue(job, self.lock, start_worker, most=WINDOW, where=where, note=self.note)
            except BaseException:
                self._gpus.give_back(shares)
                raise
            self._queues[queue] = lender, shares
        return queue

    def request(self, queue: CallQueue, method: str, packed: Packed, references: Sequence[SharedValue]) -> Request:
        """Prepare a call, with copies of the arguments."""
        lender = self._queues[queue][0] if queue in self._queues else Lender()
        parcel, handles = lender.parcel(packed)
        blocks = [parcel.buffers.block] if isinstance(parcel.buffers, Lent) else []
        return Request(method, (parcel, handles), references, lambda: lender.take_back(blocks))

    def put(self, packed: Packed) -> SharedValue:
        """Copy a value to shared memory."""
        value = SharedValue(next(self._numbers), packed)
        weakref.finalize(value, self._forgotten.append, value.number).atexit = False
        return value

    def used(self) -> list[Resources]:
        """Return what the objects have."""
        with self.lock:
            return [queue.job.resources for queue in self._queues]

    def end(self, queue: CallQueue, why: str) -> None:
        """End an object, and wait for the end of its process. Calls without an answer fail with ``why``."""
        with self.lock:
            outcomes = self._end(queue, why)
        complete(outcomes)
        self.ring()
        if self._thread is not threading.current_thread():
            queue.gone.wait(2 * GRACE)

    def let_go(self, queue: CallQueue, why: str) -> None:
        """End an object once it is idle; for garbage collection, so it takes no lock."""
        self._let_go.append((queue, why))
        self.ring()

    def close(self) -> None:
        """End all objects."""
        if self._is_closing:
            return
        self._is_closing = True
        self.ring()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def ring(self) -> None:
        """Wake the engine's thread."""
        with contextlib.suppress(BlockingIOError, OSError):  # it has enough to wake up
            os.write(self._bell, b".")

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
                outcomes = [each for queue in [*self._queues] for each in self._finish(queue, "its cluster was closed")]
                self._selector.close()
                os.close(self._asleep)
                os.close(self._bell)
            complete(outcomes)

    def _turn(self, events: Sequence[Any]) -> None:
        """Handle events: messages, connections with room, and what is due."""
        outcomes: Outcomes = []
        with self.lock:
            for key, mask in events:
                process: LocalProcess | None = key.data
                if process is None:
                    os.read(self._asleep, 4096)
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
            return self._lose(process, str(error))
        outcomes: Outcomes = []
        for message in messages:
            match message:
                case Hello(versions):
                    if unequal := difference(short_versions(), versions):
                        return self._finish(process.queue, f"its worker has other versions: {unequal}")
                case Returned(blocks):
                    process.take_back(blocks)
                case Answer() | Raised() if process.queue.sent:
                    process.since = None
                    outcomes += self._settled(process.queue, process.queue.answered(self._outcome(process, message)))
                case _:
                    return outcomes + self._lose(process, str(Garbled()))
        return outcomes

    def _outcome(self, process: LocalProcess, message: Answer | Raised) -> Packed | Exceptional:
        if isinstance(message, Raised):
            return Exceptional(*message)
        read = self._read
        return process.mailbox.open(message.parcel, lambda block: read.append((process, block)))

    def _tidy(self) -> Outcomes:
        """Handle processes that have ended, and what garbage collection found."""
        outcomes: Outcomes = []
        for process in [each for each in self._ending if each.is_over]:
            self._ending.remove(process)
            if process.is_open and process.queue.error is None:
                outcomes += self._lose(process, process.child.how_it_ended(0.0))
            else:  # it was asked to end
                process.end()
                self._settled(process.queue, [])
        for _ in range(len(self._let_go)):
            queue, why = self._let_go.popleft()
            if queue.is_idle and queue.ready.done():
                outcomes += self._end(queue, why)
            elif queue.error is None:
                self._let_go.append((queue, why))
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
                outcomes += self._lose(process, how, TimeoutError if is_late else WorkerLost)
        if time.monotonic() - self._weighed < WEIGH:
            return outcomes
        self._weighed = time.monotonic()
        limited = {queue.worker.child.process.pid: queue for queue in self._queues if queue.job.resources.memory}
        for pid, used in memory_in_use(limited).items():
            queue = limited[pid]
            if used > (most := queue.job.resources.memory) and queue.worker.is_watched:
                how = f"used {show_size(used)} of memory, more than its limit of {show_size(most)}, and was killed"
                outcomes += self._lose(queue.worker, how)
        return outcomes

    def _lose(self, process: LocalProcess, how: str, kind: type[Exception] = WorkerLost) -> Outcomes:
        process.end()
        process.child.write_log(f"{process.queue.job.name} {how}")
        outcomes = process.queue.lost(how, kind)
        process.take_back_all()
        return self._settled(process.queue, outcomes)

    def _settled(self, queue: CallQueue, outcomes: Outcomes) -> Outcomes:
        """Free what an object has, if it cannot be called any more."""
        if queue.error is not None:
            self._drop(queue)
        return outcomes

    def _end(self, queue: CallQueue, why: str) -> Outcomes:
        """End an object: an idle one by itself, a busy one at once."""
        if queue.error is not None:
            return []
        if not queue.is_idle:
            return self._finish(queue, why)
        queue.error = lambda: RuntimeError(f"{queue.job.name} cannot be called: {why}")
        queue.worker.leave()
        self._ending.append(queue.worker)
        return []

    def _finish(self, queue: CallQueue, why: str) -> Outcomes:
        outcomes = queue.finish(lambda: RuntimeError(f"{queue.job.name} cannot be called: {why}"))
        return self._settled(queue, outcomes)

    def _drop(self, queue: CallQueue) -> None:
        lender, shares = self._queues.pop(queue, (None, {}))
        if lender is not None:
            lender.close()
            self._gpus.give_back(shares)
        queue.gone.set()

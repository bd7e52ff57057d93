"""``Dispatcher``: a thread of the learner's process that requests rollouts from workers, and replaces workers that fail."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np

from jaxrl.envs.subprocess.child import GRACE, RemoteTraceback, WorkerFailed
from jaxrl.runtime.actors.messages import Done, Failed, Filled, Lost, Ready, Shapes, of_all, part_of, shapes_of
from jaxrl.runtime.actors.rollout_memory import Ticket
from jaxrl.runtime.actors.transports.interface import Message, TransportFn
from jaxrl.runtime.actors.worker_handle import WorkerHandle
from jaxrl.runtime.system.clock import LOOK, Ran


class Dispatcher:
    """Workers and their tickets. Rollouts are requested from one other thread."""

    def __init__(
        self,
        members: Sequence[WorkerHandle],
        num_lanes: int,
        open_transport: TransportFn,
        *,
        newest: bool,
        by_parts: bool = False,
        enough: int | None = None,
        max_restarts: int,
        timeout: float,
        note: Callable[[str], None],
    ) -> None:
        """
        Args:
          newest: workers use the newest parameters instead of those with which the rollout was requested.
          by_parts: workers' parts are taken as they arrive (``next_part``), instead of whole rollouts.
          enough: number of workers that must finish a rollout before the others cut theirs short; None: all.
        """
        self.members, self.num_lanes, self.newest = members, num_lanes, newest
        self.max_restarts, self.timeout, self.note = max_restarts, timeout, note
        self.by_parts, self.enough = by_parts, enough or len(members)
        self.arrivals: SimpleQueue[tuple[Ticket, WorkerHandle] | None] = SimpleQueue()
        self.tickets: dict[int, Ticket] = {}
        self.asked = 0
        self.asleep, self.bell = os.pipe()
        self.transport = open_transport(len(members), self.ring)
        self.policies, self.rollouts = self.transport.policies, self.transport.rollouts
        self.progress = self.transport.progress
        self.current: tuple[int, np.ndarray] | None = None
        """Index of the newest policy, and its version."""
        self.using: dict[int, int] = {}
        """Worker -> index of the policy that it reads."""
        self.seconds: dict[str, float] = {}
        """Part of ``diagnostics.PARTS`` -> seconds spent on it, mean over workers."""
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self.released: deque[int] = deque()
        """Rollouts that are no longer read. Garbage collection appends to it in any thread, so it takes no lock."""
        self.ran = Ran()
        self.closing = False
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._run, name="jaxrl-actors", daemon=True)

    # The learner's thread calls the methods from here to `_check_open`, the thread itself those after it.

    def start(self) -> None:
        """Start all workers, and wait until their environments are open."""
        self.thread.start()
        self.started.wait()
        if self.error is not None:
            raise self.error

    def ask(self, policy: Sequence[Any], version: np.ndarray, key_data: np.ndarray) -> Ticket:
        """Request a rollout."""
        leaves = [np.asarray(x) for x in policy]  # waits for the program that computes them
        with self.lock:
            index = self._publish(leaves, version)
            rollout = self.rollouts.take(len(self.members) if self.by_parts else 1)
            ticket = Ticket(self.asked, key_data, index, rollout, version, len(self.members))
            self.tickets[ticket.number] = ticket
            self.asked += 1
        self.ring()
        return ticket

    def publish(self, policy: Sequence[Any], version: np.ndarray) -> None:
        """Publish new parameters for workers that use the newest."""
        leaves = [np.asarray(x) for x in policy]
        with self.lock:
            self._publish(leaves, version)

    def _publish(self, leaves: Sequence[np.ndarray], version: np.ndarray) -> int:
        self._check_open()
        while self.released:
            self.rollouts.users[self.released.popleft()] -= 1
        index = self.policies.add(leaves)
        if self.newest and self.current is not None:
            self.policies.users[self.current[0]] -= 1
        self.current = index, version
        return index

    def result(self, ticket: Ticket) -> Filled:
        """Wait for a rollout. Its memory is reused once nothing refers to it."""
        ticket.over.wait()
        with self.lock:
            if ticket.waiting:
                self._check_open()
            return self._arrays(ticket)

    def next_part(self) -> tuple[Ticket, WorkerHandle, Filled]:
        """Wait for the next finished part of any worker; for pools with ``by_parts``."""
        while (arrived := self.arrivals.get()) is None:
            self.arrivals.put(None)  # for the next call
            self._check_open()
        ticket, member = arrived
        with self.lock:
            return ticket, member, part_of(self._arrays(ticket), member.job)

    def _arrays(self, ticket: Ticket) -> Any:
        return self.rollouts.arrays(ticket.rollout, lambda: self.released.append(ticket.rollout))

    def spent(self) -> dict[str, float]:
        """Return the seconds spent on each of ``diagnostics.PARTS`` since the last call, mean over workers."""
        with self.lock:
            spent, self.seconds = self.seconds, {}
        return spent

    def close(self) -> None:
        """End all workers."""
        if self.closing:
            return
        self.closing = True
        self.ring()
        if self.thread is threading.current_thread():  # by the garbage collector, or by ``note``
            threading.Thread(target=self._release, daemon=True).start()
        else:
            self._release()

    def _release(self) -> None:
        if self.thread.ident is None:
            self.transport.end([], 0.0)
        else:
            self.thread.join()
        os.close(self.asleep)
        os.close(self.bell)
        for blocks in (self.policies, self.rollouts, self.progress):
            blocks.close()

    def ring(self) -> None:
        """Wake the dispatcher's thread."""
        os.write(self.bell, b".")

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self.closing:
            raise RuntimeError("this actor pool is closed")

    def _run(self) -> None:
        try:
            for member in self.members:
                member.start(self.transport)
            while not self.closing:
                self._turn()
        except BaseException as error:
            self.error = error
        finally:
            grace = GRACE if self.started.is_set() else 0.0  # workers that are still importing do not read messages
            self.transport.end([member.process for member in self.members if member.process], grace)
            self.started.set()
            self.arrivals.put(None)
            for ticket in list(self.tickets.values()):
                ticket.over.set()

    def _turn(self) -> None:
        """Wait for an event and handle it."""
        connections = [member.process.connection for member in self.members if member.process.connection is not None]
        ready = wait([*connections, self.asleep], LOOK)
        if self.asleep in ready:
            os.read(self.asleep, 4096)
        for member in self.members:
            connection = member.process.connection
            if member.process.has_news if connection is None else connection in ready:
                self._hear(member, member.process.receive())
        if self.ran.is_due:
            elapsed = self.ran.look()
            for member in self.members:
                if trouble := member.trouble(int(self.progress.rows[member.job.worker]), self.timeout, elapsed):
                    self._replace(member, trouble)
        with self.lock:
            for member in self.members:
                self._send(member)

    def _hear(self, member: WorkerHandle, said: Sequence[Message]) -> None:
        for message in said:
            if isinstance(message, Lost):
                return self._replace(member, message.how, for_good=message.for_good)
            if isinstance(message, Failed):
                return self._replace(member, f"failed: {message.message}", message.traceback)
            if isinstance(message, Done) and message.part is not None:
                self._copy(member, message.part)
            with self.lock:
                self._take(member, message)

    def _copy(self, member: WorkerHandle, part: Filled) -> None:
        """Copy a part that did not come through shared memory."""
        with self.lock:
            self.rollouts.shape(of_all(shapes_of(part), self.num_lanes, len(self.members)))
            mine = part_of(self.rollouts.views[self.tickets[member.next_ticket].rollout], member.job)
        jax.tree.map(np.copyto, mine, part)

    def _take(self, member: WorkerHandle, message: Ready | Shapes | Done) -> None:
        if isinstance(message, Ready):
            member.ready = True
            if all(each.ready for each in self.members):
                self.started.set()
        elif isinstance(message, Shapes):
            self.rollouts.shape(of_all(message.rows, self.num_lanes, len(self.members)))
            member.process.accept_shapes(self.tickets[member.next_ticket])
        else:
            self._finished(member, message)

    def _send(self, member: WorkerHandle) -> None:
        """Start a worker's next rollout, if one is requested."""
        ticket = self.tickets.get(member.next_ticket)
        if ticket is None or member.busy or not member.ready:
            return
        assert self.current is not None
        index, version = self.current if self.newest else (ticket.policy, ticket.acted[member.job.worker])
        ticket.acted[member.job.worker] = member.acted = version
        self.policies.users[index] += 1
        self.using[member.job.worker] = index
        member.busy, member.since = True, None
        member.process.collect(ticket, index)

    def _finished(self, member: WorkerHandle, done: Done) -> None:
        ticket = self.tickets[member.next_ticket]
        self._put_down(member)
        member.warm = True
        member.next_ticket += 1
        mine = part_of(self.rollouts.views[ticket.rollout], member.job)
        last = jax.tree.map(lambda x: x[:, -1].copy(), mine.inputs)
        member.job = member.job._replace(after=last)
        for part, seconds in done.seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds / len(self.members)
        ticket.losses[member.job.worker], ticket.rows[member.job.worker] = done.losses, done.rows
        assert self.current is not None
        steps = len(mine.came.reward) * done.rows * member.job.num_envs
        lag = float(np.mean(self.current[1] - member.acted))
        member.done.append((steps, sum(done.seconds.values()), lag))
        ticket.waiting.discard(member.job.worker)
        if len(self.members) - len(ticket.waiting) >= self.enough:
            self.progress.due[0] = max(self.progress.due[0], ticket.number + 1)
        if self.by_parts:
            self.arrivals.put((ticket, member))
        if not ticket.waiting:
            del self.tickets[ticket.number]
            if not self.newest:
                self.policies.users[ticket.policy] -= 1
            ticket.over.set()

    def _put_down(self, member: WorkerHandle) -> None:
        member.busy = False
        if (index := self.using.pop(member.job.worker, None)) is not None:
            self.policies.users[index] -= 1

    def _replace(self, member: WorkerHandle, why: str, remote: str | None = None, *, for_good: bool = False) -> None:
        """End what is left of a worker's process that failed, report it, and start another process in its place.

        ``why`` ends a sentence; ``remote`` is the traceback of the exception that it raised. Raises WorkerFailed if it never
        started, if nothing can replace it (``for_good``), or if there were ``max_restarts`` restarts.
        """
        member.process.release()
        member.write_log(remote or f"{member} {why}")
        cause = RemoteTraceback(remote) if remote else None
        if not member.ready and not member.restarts:
            raise WorkerFailed(f"{member} {why}, before it could start{member.where}") from cause
        when = "between two rollouts" if member.ready else "at its start"
        if member.busy and member.next_ticket in self.tickets:
            when = f"at rollout {member.next_ticket}"
        if for_good:
            raise WorkerFailed(f"{member} {why} {when}{member.where}") from cause
        if (number := 1 + sum(each.restarts for each in self.members)) > self.max_restarts:
            raise WorkerFailed(
                f"{member} {why} {when}, after max_restarts={self.max_restarts} restarts: raise max_restarts, or see "
                f"{member.log or 'its output'}"
            ) from cause
        member.restarts += 1
        self.note(f"{member} {why} {when}; replaced (restart {number} of {self.max_restarts})")
        if remote:
            self.note(remote.rstrip())
        with self.lock:
            self._put_down(member)
        member.start(self.transport)

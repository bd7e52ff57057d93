"""``RayTransport``: workers of a pool as remote objects on a cluster of Ray.

A large policy is put into the cluster once per version, and is sent once to each machine. A worker returns its part of a rollout,
which is copied into the pool's memory, so that no rollout that the learner keeps fills Ray's store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.runtime.actors import messages
from jaxrl.runtime.actors.messages import Failed, Filled, Lost, Ready, WorkerJob
from jaxrl.runtime.actors.rollout_memory import Blocks, Progress, Ticket, Users
from jaxrl.runtime.actors.transports.interface import Message
from jaxrl.runtime.actors.transports.ray_actor import RayActor, Rows
from jaxrl.runtime.remote.cluster import Cluster, RemoteObject, open_cluster
from jaxrl.runtime.remote.errors import NotEnough, RemoteError, WorkerLost
from jaxrl.runtime.remote.ray.beside import call_beside, how_it_ended

REPORT = 1.0
"""Seconds between two questions about a worker's progress."""


SMALL = 2**16
"""Bytes of a policy that is sent with each request, as Ray has small arguments at hand before it starts a call."""


class PolicyReferences:
    """Policies that were put into the cluster, or are small."""

    def __init__(self, cluster: Cluster) -> None:
        self.users, self.references = Users(), list[Any]()
        self._cluster = cluster

    def add(self, leaves: Sequence[np.ndarray]) -> int:
        """See ``interface.Policies``."""
        is_small = sum(leaf.nbytes for leaf in leaves) <= SMALL
        reference = [leaf.copy() for leaf in leaves] if is_small else self._cluster.put([*leaves])
        index = self.users.take()
        self.references[index : index + 1] = [reference]
        return index

    def close(self) -> None:
        self.references.clear()


class RayTransport:
    """Workers on one or several machines."""

    def __init__(
        self,
        num_workers: int,
        ring: Callable[[], None],
        *,
        placement: str,
        timeout: float,
        insecure: bool,
        note: Callable[[str], None],
        log_folder: Path | None,
    ) -> None:
        """
        Args:
          ring: wakes the dispatcher.
          placement: see ``Cluster.start``.
          timeout: seconds for which the replacement of a worker may wait for a machine.
        """
        self.ring, self.placement, self.timeout = ring, placement, timeout
        self.cluster = open_cluster("ray", insecure=insecure, note=note, log_folder=log_folder, patience=timeout)
        self.policies = PolicyReferences(self.cluster)
        self.rollouts, self.progress = Blocks(messages.ROLLOUT), Progress(num_workers)

    def start(self, job: WorkerJob, log: Path | None, is_replacement: bool) -> RayProcess:
        """See ``interface.Transport``. Raise NotEnough if no machine has a CPU left; a replacement waits for one."""
        return RayProcess(self, job, log, is_replacement)

    def end(self, processes: Sequence[RayProcess], grace: float) -> None:
        """See ``interface.Transport``. The environments end with their processes."""
        self.cluster.close()


class RayProcess:
    """Remote object that holds a worker, on any machine of the cluster."""

    connection = None

    def __init__(self, transport: RayTransport, job: WorkerJob, log: Path | None, is_replacement: bool) -> None:
        self._transport, self._job, self._log = transport, job, log
        self._inbox = deque[Message]()
        self._shapes: Filled | None = None
        """Shapes of its part of a rollout, once both sides know them."""
        self._is_heard = False
        """It has finished a rollout since the last look."""
        self._object: RemoteObject | None = None
        self._waits_since: float | None = None
        """Time since which no machine has had a CPU for it."""
        self._report, self._asked, self._told = Future[Any](), 0.0, 0
        """Answer to the last question about its progress, the time of that, and ``due`` as told then."""
        self._report.set_result(0)
        try:
            self._start()
        except NotEnough:
            if not is_replacement:
                raise

    def _start(self) -> None:
        transport, log_name = self._transport, None if self._log is None else self._log.stem
        self._object = transport.cluster.start(RayActor, self._job, cpus=1, placement=transport.placement, log_name=log_name)
        self._expect(self._object.ready, lambda done: Ready())

    def _expect(self, future: Future[Any], message: Callable[[Any], Message]) -> None:
        """Add a message to the inbox once the future is complete."""

        def completed(done: Future[Any]) -> None:
            self._inbox.append(message(done.result()) if done.exception() is None else self._failure(done.exception()))
            self._transport.ring()

        future.add_done_callback(completed)

    def _failure(self, error: BaseException | None) -> Message:
        if isinstance(error, RemoteError):
            kind = "" if error.type_name == EnvironmentFailed.__name__ else f"{error.type_name}: "
            return Failed(f"{kind}{error.message}", str(error.__cause__).strip())
        if isinstance(error, NotEnough):
            return Lost(f"has no place ({error})", for_good=True)
        how = None if self._object is None else how_it_ended(self._object)
        return Lost(how or f"failed: {error}")

    @property
    def has_news(self) -> bool:
        return bool(self._inbox)

    def receive(self) -> Sequence[Message]:
        """See ``interface.WorkerProcess``."""
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def collect(self, ticket: Ticket, policy: int) -> None:
        """See ``interface.WorkerProcess``."""
        assert self._object is not None
        reference = self._transport.policies.references[policy]
        try:
            future = self._object.call("collect", ticket.number, ticket.key_data, reference, self._known_shapes())
            self._expect(future, self._filled)
        except WorkerLost as error:  # since the last rollout
            self._inbox.append(self._failure(error))
            self._transport.ring()

    def _known_shapes(self) -> Filled | None:
        """Return the shapes of its part of a rollout, if they are known before its first rollout and it was not told."""
        rollouts = self._transport.rollouts
        if self._shapes is not None or rollouts.shapes is None:
            return None
        self._shapes = messages.shapes_of(messages.part_of(rollouts.views[0], self._job))
        return self._shapes

    def _filled(self, result: Any) -> Message:
        done, buffer, shapes = result
        self._shapes, self._is_heard = shapes or self._shapes, True
        assert self._shapes is not None
        return done._replace(part=Rows(self._shapes, buffer).rollout)

    def accept_shapes(self, ticket: Ticket) -> None:
        """See ``interface.WorkerProcess``. It allocates its memory itself."""

    def fault(self, elapsed: float) -> str | None:
        """See ``interface.WorkerProcess``. Start it if it waits for a machine; else ask for its progress."""
        if self._object is None:
            return self._try_again(elapsed)
        if self._is_heard:  # so its progress is known
            self._asked, self._is_heard = elapsed, False
        due = int(self._transport.progress.due[0])
        if self._object.ready.done() and self._report.done() and (elapsed - self._asked >= REPORT or due != self._told):
            self._ask(elapsed, due)
        return how_it_ended(self._object) if not self._inbox else None

    def _try_again(self, elapsed: float) -> str | None:
        if self._waits_since is None:
            self._waits_since = elapsed
        try:
            self._start()
        except NotEnough as error:
            if elapsed - self._waits_since > self._transport.timeout:
                self._inbox.append(self._failure(error))
        return None

    def _ask(self, elapsed: float, due: int) -> None:
        """Ask how many rows it has collected, and tell it which rollouts need not be finished."""
        assert self._object is not None
        self._asked, self._told = elapsed, due
        rows, worker = self._transport.progress.rows, self._job.worker

        def answered(done: Future[Any]) -> None:
            rows[worker] = done.result()

        self._report = call_beside(self._object, "report", due)
        self._report.add_done_callback(answered)

    def release(self) -> None:
        """See ``interface.WorkerProcess``."""
        if self._object is not None:
            self._object.close()

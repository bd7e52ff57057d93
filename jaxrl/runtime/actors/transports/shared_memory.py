"""``SharedMemoryTransport``: workers of a pool as processes of this machine. No array goes through a pipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxrl.envs.subprocess.child import Child, end_all
from jaxrl.envs.subprocess.inbox import Garbled
from jaxrl.envs.subprocess.shared_memory import SharedMemory
from jaxrl.runtime.actors import messages
from jaxrl.runtime.actors.messages import Collect, Lost, RolloutSegment, WorkerJob
from jaxrl.runtime.actors.rollout_memory import Blocks, PolicyBlocks, Progress, Ticket
from jaxrl.runtime.actors.transports.interface import Message
from jaxrl.runtime.system.clock import STANDSTILL


class SharedMemoryTransport:
    """Workers on this machine."""

    def __init__(self, num_workers: int, ring: Callable[[], None], variables: Mapping[str, str]) -> None:
        """``variables`` are set in the workers' environment. It needs no ``ring``, as the dispatcher waits for messages."""
        self.variables = variables
        self.policies, self.rollouts, self.progress = PolicyBlocks(), Blocks(messages.ROLLOUT), Progress(num_workers)

    def start(self, job: WorkerJob, log: Path | None, is_replacement: bool) -> ChildProcess:
        return ChildProcess(self, job, log)

    def end(self, processes: Sequence[ChildProcess], grace: float) -> None:
        end_all([process.child for process in processes], messages.CLOSE, grace)


class ChildProcess:
    """Child of this process."""

    def __init__(self, transport: SharedMemoryTransport, job: WorkerJob, log: Path | None) -> None:
        self._transport, self._attached = transport, set[tuple[str, int]]()
        self._stopped: float | None = None
        """Time of the SIGSTOP that stopped it."""
        self.child = Child("jaxrl.runtime.actors.transports.worker", variables=transport.variables, log=log)
        self.connection = self.child.connection
        self.child.send(job)
        self._give(*transport.progress.memory[0])

    def _give(self, memory: SharedMemory, segment: RolloutSegment) -> None:
        """Pass it a block of memory, unless it has it already."""
        if (segment.kind, segment.number) in self._attached:
            return
        self._attached.add((segment.kind, segment.number))
        self.child.send(segment)
        memory.give(self.child.connection, self.child.process.pid)

    @property
    def has_news(self) -> bool:
        return self.child.has_said

    def receive(self) -> Sequence[Message]:
        try:
            said = self.child.receive()
        except (EOFError, OSError):
            return [Lost(self.child.how_it_ended())]
        except Garbled as error:
            return [Lost(str(error))]
        return [each if isinstance(each, Message) else Lost(str(Garbled())) for each in said]

    def collect(self, ticket: Ticket, policy: int) -> None:
        self._give(*self._transport.policies.memory[policy])
        if self._transport.rollouts.shapes is not None:
            self.accept_shapes(ticket)
        self.child.send(Collect(ticket.number, ticket.rollout, policy, ticket.key_data))

    def accept_shapes(self, ticket: Ticket) -> None:
        self._give(*self._transport.rollouts.memory[ticket.rollout])

    def fault(self, elapsed: float) -> str | None:
        if self.child.has_ended and not self.child.has_said:  # a process that it started keeps its connection open
            return self.child.how_it_ended()
        if not self.child.is_stopped:
            self._stopped = None
        elif self._stopped is None:
            self._stopped = elapsed
        elif elapsed - self._stopped > STANDSTILL:
            return "was stopped (SIGSTOP)"
        return None

    def release(self) -> None:
        self.child.release()

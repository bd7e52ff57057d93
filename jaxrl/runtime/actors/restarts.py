"""``Restarts``: how a worker that failed is reported and its process ended, and how many may be restarted."""

from __future__ import annotations

from collections.abc import Callable

from jaxrl.envs.subprocess.child import RemoteTraceback, WorkerFailed
from jaxrl.runtime.actors.worker_handle import WorkerHandle


class Restarts:
    """The restarts of a pool's workers, counted against a limit."""

    def __init__(self, at_most: int, note: Callable[[str], None]) -> None:
        self.at_most, self.note = at_most, note
        self.count = 0

    def admit(self, worker: WorkerHandle, why: str, collecting: bool, remote: str | None) -> None:
        """End what is left of a worker's process, and report that another one replaces it.

        Args:
          why: how the worker failed, as the end of a sentence.
          collecting: it was collecting a rollout.
          remote: the traceback of the exception that it raised.

        Raises:
          WorkerFailed: it never started, or the limit is reached.
        """
        worker.child.release()
        cause = RemoteTraceback(remote) if remote else None
        worker.child.write_log(remote or f"{worker} {why}")
        if not worker.ready and not worker.restarts:
            raise WorkerFailed(f"{worker} {why}, before it could start{worker.where}") from cause
        when = f"at rollout {worker.next_ticket}" if collecting else "between two rollouts" if worker.ready else "at its start"
        self.count += 1
        if self.count > self.at_most:
            raise WorkerFailed(
                f"{worker} {why} {when}, after max_restarts={self.at_most} restarts: raise max_restarts, or see "
                f"{worker.log or 'its output'}"
            ) from cause
        worker.restarts += 1
        self.note(f"{worker} {why} {when}; replaced (restart {self.count} of {self.at_most})")
        if remote:
            self.note(remote.rstrip())

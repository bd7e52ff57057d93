"""``ActorPool``: rollouts by worker processes, through shared memory, by parameters of a known age; a worker that dies is replaced."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.config import check_count
from jaxrl.envs.memory import SharedMemory
from jaxrl.rollout import Row, episode_metrics, to_rollout
from jaxrl.runtime.actors.dispatch import Dispatcher, Member, Ticket
from jaxrl.runtime.actors.messages import POLICY, Memory, plain_leaves
from jaxrl.runtime.drivers.diagnostics import Stopwatch
from jaxrl.runtime.drivers.sampler import host_env
from jaxrl.runtime.drivers.seeds import over_seeds
from jaxrl.types import Agent, Key, Metrics, Policy, Rollout


class ActorPool:
    """A ``Sampler`` whose environments, and what acts in them, are in worker processes.

    Each worker builds the agent from its spec and holds a range of the environments of all seeds. Rollouts are written by the
    workers into memory that this process reads, and parameters the other way; nothing of either is copied through a pipe.

    Two clocks: "deterministic", where a rollout is made by the parameters that it was asked for with, so that two runs are equal
    to the bit; and "async", where a worker that begins one takes the newest there are. ``Rollout.version`` says which they were.

    A worker that crashes, is killed, hangs or stands still is told of, and replaced by one whose environments are seeded by (seed,
    worker, number of the restart) and which makes the rollout that was not finished again, by the same parameters. Its episodes
    begin in an invalid first row, as after a truncation, so that replay and recurrent learning see no step that was none.
    """

    def __init__(
        self,
        agent: Agent,
        seeds: Sequence[int],
        *,
        num_workers: int,
        clock: str = "deterministic",
        max_restarts: int = 10,
        timeout: float = 60.0,
        num_threads: int = 1,
        pin: bool = False,
        log_folder: Path | None = None,
        note: Callable[[str], None] = print,
        trust: Sequence[str] | None = None,
    ) -> None:
        """
        Args:
          agent: on a host environment, with parts that other processes can import.
          seeds: of the runs that the environments are for.
          num_workers: processes, which share out ``agent.num_envs``.
          clock: "deterministic" or "async".
          max_restarts: how many workers may be replaced before the pool gives up, in all.
          timeout: seconds in which a row must end; a worker that needs longer is taken to hang.
          num_threads: of XLA's in each worker.
          pin: hold each worker to cores of its own.
          log_folder: where each worker's output goes, ``worker-0.log`` and so on; None: to where this process's goes.
          note: is told in one line what befell a worker.
          trust: see ``jaxrl.build``; default: what this process has imported for the agent.

        Raises:
          ValueError: more workers than environments, or parts that cannot be imported.
          WorkerFailed: one did not start.
          OSError: too many open files, or no memory to share.
        """
        self.env, self.agent, self.num_seeds = host_env(agent), agent, len(seeds)
        self.watch = Stopwatch()
        self.metrics = jax.jit(over_seeds(self.num_seeds)(episode_metrics))
        if clock not in ("deterministic", "async"):
            raise ValueError(f"clock={clock!r} must be 'deterministic' or 'async'")
        workers = members(agent, num_workers)
        self.dispatcher = Dispatcher(
            agent,
            [int(seed) for seed in seeds],
            workers,
            newest=clock == "async",
            max_restarts=check_count("max_restarts", max_restarts, at_least=0),
            timeout=timeout,
            num_threads=num_threads,
            pin=pin,
            log_folder=log_folder,
            note=note,
            trust=trust,
        )
        self._release = weakref.finalize(self, self.dispatcher.close)
        self.dispatcher.start()

    def begin(self, policy: Policy, key: Key) -> Future[tuple[Rollout, Metrics]]:
        """Ask for the next rollout; any number may be under way."""
        ticket = self.dispatcher.ask(plain_leaves(policy), np.asarray(policy.version, np.int32), np.asarray(jax.random.key_data(key)))
        return Pending(partial(self._taken, ticket))

    def collect(self, policy: Policy, key: Key) -> tuple[Rollout, Metrics]:
        """Ask for a rollout, and wait for it. Its arrays lie in shared memory for as long as somebody holds them."""
        return self.begin(policy, key).result()

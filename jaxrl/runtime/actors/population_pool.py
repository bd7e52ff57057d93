"""``PopulationPool``: worker processes that play the members of populations, on this machine or on a cluster of Ray."""

from __future__ import annotations

import faulthandler
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import policy_shapes
from jaxrl.builder.spec import build
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.runtime.actors.central_inference import with_threads
from jaxrl.runtime.actors.messages import plain_leaves, policy_like
from jaxrl.runtime.actors.pool import sent_with_spec
from jaxrl.runtime.actors.scheme import Scheme
from jaxrl.runtime.actors.worker_handle import START_TIMEOUT
from jaxrl.runtime.remote.cluster import open_cluster
from jaxrl.runtime.remote.errors import RemoteError, WorkerLost
from jaxrl.runtime.remote.parallel_map import SharedCalls
from jaxrl.runtime.samplers.diagnostics import Stopwatch
from jaxrl.runtime.samplers.population import MemberPlayer, chunks_of, joined, metrics_of, not_played
from jaxrl.types import Agent, Episodes, Key, Metrics, Policy

LOOK = 1.0
"""Seconds between two settings of a worker's alarm."""


class Member:
    """Plays members in a worker process, for ``PopulationPool``."""

    def __init__(self, spec: Any, env: Callable[[], Any] | None, trust: Sequence[str], threads: int, timeout: float) -> None:
        """``timeout``: seconds that a row may take, after which the process prints where it is, and ends."""
        agent = build(spec, trust=trust, **({} if env is None else {"env": env()}))
        self.timeout, self.set_at = timeout, 0.0
        agent = agent._replace(env=with_threads(agent, threads))
        self.player = MemberPlayer(agent, self.expect)
        self.shapes = policy_shapes(agent)

    def play(self, leaves: Sequence[np.ndarray], key_data: np.ndarray, member: np.ndarray) -> tuple[Episodes, dict[str, float]]:
        """Return the episodes of some members, and seconds spent on ``diagnostics.PARTS``."""
        before = dict(self.player.watch.seconds)
        policy = jax.device_put(policy_like(self.shapes, [np.array(x) for x in leaves]))
        self.set_at = -math.inf  # the first row sets the usual alarm
        self._set_alarm(max(self.timeout, START_TIMEOUT))  # until then it compiles, and opens the environments
        try:
            played = self.player.play(policy, jax.random.wrap_key_data(jnp.asarray(key_data)), member)
        finally:
            faulthandler.cancel_dump_traceback_later()
        spent = {part: seconds - before[part] for part, seconds in self.player.watch.seconds.items()}
        return played, spent

    def expect(self) -> None:
        """Set an alarm for the next row."""
        if time.monotonic() - self.set_at > LOOK:
            self.set_at = time.monotonic()
            self._set_alarm(self.timeout)

    def _set_alarm(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds + LOOK, exit=True, file=sys.__stderr__ or 2)


class PopulationPool:
    """Plays the populations of all seeds in worker processes: a ``Sampler`` whose results are ``Episodes``.

    Workers take chunks of members as they become idle. A member depends on (key, number) alone, so the results are those of one
    process, and the members of a worker that is lost are played again by another.
    """

    def __init__(
        self, agent: Agent, seeds: Sequence[int], scheme: Scheme, log_folder: Path | None, note: Callable[[str], None]
    ) -> None:
        """
        Args:
          scheme: with its number of workers.
          log_folder: folder for the output of the workers.
          note: called with one line if a worker is restarted.
        """
        self.agent, self.num_seeds, self.scheme = agent, len(seeds), scheme
        self.metrics, self.watch = metrics_of(agent, len(seeds)), Stopwatch()
        self.chunks = chunks_of(agent, scheme.num_workers)
        job = (agent.spec, *sent_with_spec(agent), 1, scheme.timeout)
        place: dict[str, Any] = {"cpus": scheme.num_workers} if scheme.engine == "local" else {"insecure": scheme.insecure}
        self.cluster = open_cluster(scheme.engine, log_folder=log_folder, note=note, **place)
        try:
            self.members = [
                self.cluster.start(Member, *job, restarts=scheme.max_restarts, placement=scheme.placement, log_name=f"worker-{i}")
                for i in range(scheme.num_workers)
            ]
            for member in self.members:
                member.ready.result()
        except BaseException as error:
            self.close()
            if isinstance(error, RemoteError | WorkerLost):
                raise WorkerFailed(str(error)) from error
            raise

    def collect(self, policy: Policy, key: Key, active: np.ndarray) -> tuple[Episodes, Metrics]:
        """Play the next generation of each seed where ``active``, bool[num_seeds]."""
        leaves, data = [np.asarray(x) for x in plain_leaves(policy)], np.asarray(jax.random.key_data(key))
        calls = list[tuple[Any, ...]]()
        for i in np.flatnonzero(active).tolist():
            sent = self.cluster.put([x[i] for x in leaves])
            calls += [("play", sent, data[i], chunk) for chunk in self.chunks]
        results = iter(self._results(SharedCalls(self.members, calls, self.scheme.max_restarts)))
        of_seeds = []
        for i in range(self.num_seeds):
            if not active[i]:
                of_seeds.append(not_played(self.agent, jax.tree.map(lambda x, i=i: x[i], policy)))
                continue
            played, spent = zip(*[next(results) for _ in self.chunks], strict=True)
            of_seeds.append(joined(played))
            for part in self.watch.seconds:
                self.watch.seconds[part] += sum(each[part] for each in spent) / len(self.members)
        episodes: Any = jax.tree.map(lambda *leaves: np.stack(leaves), *of_seeds)
        return episodes, self.metrics(episodes)

    def _results(self, calls: SharedCalls) -> list[tuple[Episodes, dict[str, float]]]:
        """Wait for all calls. Raise WorkerFailed if one fails, or if workers were replaced more than ``max_restarts`` times."""
        try:
            found = [future.result() for future in calls.futures]
        except WorkerLost as error:
            calls.drop()
            slow = f"a worker also ends if a row takes more than timeout={self.scheme.timeout:g} seconds: see its log"
            raise WorkerFailed(f"{error} ({slow})") from error
        except (RemoteError, TimeoutError) as error:
            calls.drop()
            raise WorkerFailed(str(error)) from error
        if (number := sum(self.restarts)) > (most := self.scheme.max_restarts):
            raise WorkerFailed(f"workers were replaced {number} times, and max_restarts={most}: raise it, or see their logs")
        return found

    @property
    def restarts(self) -> list[int]:
        """Number of restarts of each worker."""
        return [member.restarts for member in self.members]

    def close(self) -> None:
        self.cluster.close()

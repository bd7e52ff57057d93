"""Train while workers are killed, stopped and made to raise at random. Check that every rollout is used once.

``python -m tests.helpers.processes.actor_chaos --faults 100`` prints a summary and exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.types import Rollout
from tests.helpers.agents import small
from tests.helpers.gymnasium_envs import Told
from tests.helpers.processes.actor_pools import kept, parent_of, pid_of, ray_workers, segments, workers_of
from tests.helpers.processes.children import runs, soon
from tests.helpers.processes.ray_nodes import Nodes

LAG = 1
PAUSE = 0.02
"""Seconds between two iterations, since iterations are faster than a worker's start."""
FAULTS = ("kill", "stop", "raise", "exit")


class Watched(ActorPool):
    """Checks each rollout that is used for learning."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.wrong: list[str] = []
        self.number, self.seams = 0, 0
        self.seen: set[bytes] = set()
        self.last: Any = None
        super().__init__(*args, **options)

    def begin(self, policy: Any, key: Any) -> Any:
        wait = super().begin(policy, key)

        def waited() -> Any:
            collected = wait()
            self.look_at(collected[0])
            return collected

        return waited

    def look_at(self, rollout: Rollout) -> None:
        """Check that the rollout has the expected policy version, follows the previous rollout, and is new."""
        n, self.number = self.number, self.number + 1
        if (rollout.version != max(0, n - LAG)).any():
            self.wrong.append(f"rollout {n} has the policy versions {rollout.version.tolist()}")
        first, last = (kept(jax.tree.map(lambda x, t=t: x[:, t], rollout.inputs)) for t in (0, -1))
        if self.last is not None and not all(map(np.array_equal, *map(jax.tree.leaves, (first, self.last[0])))):
            self.wrong.append(f"rollout {n} does not follow the previous one")
        begins = np.zeros_like(rollout.valid[:, 0]) if self.last is None else self.last[1]
        self.seams += int((~rollout.valid[:, 0] & ~begins).any(0).sum())
        self.last = last, kept((rollout.terminated | rollout.truncated)[:, -1])
        for env in range(rollout.valid.shape[2]):
            draws = np.ascontiguousarray(rollout.inputs.obs[:, 1:, env, 0]).tobytes()
            if draws in self.seen:
                self.wrong.append(f"rollout {n} repeats rows that were used before, in environment {env}")
            self.seen.add(draws)


class Report(NamedTuple):
    """Summary of a disturbed training."""

    faults: int
    restarts: list[int]
    iterations: int
    seams: int
    """Invalid rows although no episode had ended: one for each environment of a replaced worker."""
    seconds: float
    reward: float
    """Mean reward of a row in the last iterations, at most 1."""
    wrong: list[str]


class Disturber(threading.Thread):
    """Makes workers fail, one or two at a time, each after the previous faults were noticed."""

    def __init__(self, pool: ActorPool, mark: Path, faults: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.pool, self.mark, self.left, self.rng = pool, mark, faults, random.Random(seed)
        self.done: list[str] = []

    def run(self) -> None:
        while self.left:
            number = 1 if self.left == 1 or self.rng.random() < 0.8 else 2
            before = self.pool.restarts
            time.sleep(self.rng.uniform(0.0, 0.3))
            expected = self.disturb(number, before)
            while self.found() != expected and self.pool.dispatcher.error is None:
                time.sleep(0.01)
            self.left -= number
            if self.rng.random() < 0.8:  # the other faults come while a new worker is still importing or compiling
                soon(lambda: all(member.warm for member in self.pool.members), 120)
                time.sleep(self.rng.uniform(0.0, 0.3))

    def found(self) -> Any:
        """Return the pool's restarts."""
        return self.pool.restarts

    def disturb(self, number: int, before: list[int]) -> Any:
        """Make some workers fail. Return what ``found`` will return after they were replaced."""
        workers = range(len(self.pool.members))
        chosen = self.rng.sample(workers, number)
        for worker in chosen:
            how, member = self.rng.choice(FAULTS), self.pool.members[worker]
            if not member.ready and how in ("raise", "exit"):
                how = "kill"  # it would obey only later
            self.fail(pid_of(member.process), how)
        return [each + (worker in chosen) for worker, each in enumerate(before)]

    def fail(self, pid: int, how: str) -> None:
        self.done.append(how)
        if how in ("kill", "stop"):
            os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        else:
            Told.tell(self.mark, pid, how)


class RayDisturber(Disturber):
    """Kills, stops and orders workers on Ray, and kills the nodes that they are on."""

    def __init__(self, nodes: Nodes, *args: Any) -> None:
        """``nodes`` have one worker each, at most."""
        super().__init__(*args)
        self.nodes, self.failed = nodes, set[int]()
        """``failed``: processes that were made to fail. They may run for a while after they were replaced."""

    def found(self) -> Any:
        """Return the number of restarts: which place a process had, Ray does not tell."""
        return sum(self.pool.restarts)

    def disturb(self, number: int, before: list[int]) -> Any:
        for pid in self.rng.sample(self.workers(number), number):
            self.failed.add(pid)
            node, how = parent_of(pid), self.rng.choice(FAULTS if self.pool.members[0].ready else ("kill", "stop"))
            if node != self.nodes.raylets[0] and self.rng.random() < 0.3:
                self.done.append("node")
                os.kill(node, signal.SIGKILL)
                self.nodes.add()
            else:
                self.fail(pid, how)
        return sum(before) + number

    def workers(self, at_least: int) -> list[int]:
        found: list[int] = []

        def enough() -> bool:
            found[:] = [pid for pid in ray_workers() if pid not in self.failed]
            return len(found) >= at_least

        assert soon(enough)
        return found


def train(faults: int, seed: int = 0, disturber_of: Callable[..., Disturber] = Disturber, **more: Any) -> Report:
    """Train through ``faults`` faults and 200 iterations after the last one. ``more`` are keywords of the pool."""
    children, names, start, notes = set(workers_of(os.getpid())), segments(), time.monotonic(), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "order"
        agent = small("impala", f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={mark}", learning_rate=0.01)
        options = {"num_workers": 2, "max_restarts": faults, "note": notes.append, **more}
        driver = HostDriver(agent, [seed], partial(Watched, **options), lag=LAG)
        states = driver.init()
        pool: Any = driver.learner.sampler  # type: ignore[union-attr]
        disturber = disturber_of(pool, mark, faults, seed)
        disturber.start()
        beyond, iterations = 0, 0
        while beyond < 200 and driver.failure is None:
            states, metrics, _ = driver.iterate(states, 1)
            iterations += 1
            beyond += not disturber.is_alive()
            time.sleep(0 if beyond else PAUSE)
        if driver.failure is not None:
            driver.close()
            raise AssertionError(f"the pool gave up after {len(disturber.done)} faults: {disturber.done}") from driver.failure
        played, wrong, restarts = metrics["charts/episodic_return"], list(pool.wrong), pool.restarts
        driver.close()
        wrong += [f"unused order: {path.name}" for path in Path(folder).iterdir()]
    if iterations != pool.number or states.learner.version.tolist() != [iterations]:
        wrong.append(f"{iterations} iterations learnt {states.learner.version.tolist()} times from {pool.number} rollouts")
    replacements = [line for line in notes if "; replaced (restart " in line]
    if not len(replacements) == sum(restarts) == faults == len(disturber.done):
        wrong.append(
            f"{faults} faults, {len(disturber.done)} of them made, {sum(restarts)} restarts, {len(replacements)} reported"
        )
    if not soon(lambda: not [pid for pid in workers_of(os.getpid()) if runs(pid) and pid not in children]):
        wrong.append("processes still run")
    if more := segments() - names:
        wrong.append(f"shared memory was not removed: {more}")
    reward = float(played.sum.sum() / max(played.count.sum(), 1)) / 5
    return Report(faults, restarts, iterations, pool.seams, time.monotonic() - start, reward, wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    report = train(args.faults, args.seed)
    print(
        f"{report.faults} faults in {report.seconds:.0f} s: restarts {report.restarts}, {report.iterations} iterations, "
        f"{report.seams} invalid rows, reward {report.reward:.2f} of 1"
    )
    print("\n".join(report.wrong) or "every rollout was used once, in order; no process and no shared memory is left")
    return bool(report.wrong) or report.reward < 0.9


if __name__ == "__main__":
    sys.exit(main())

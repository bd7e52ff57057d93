"""Central inference: workers only step, and the policy acts in this process, in batches over all workers (GA3C, SEED)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxrl.envs import make_env
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.envs.subprocess.processes import Processes
from jaxrl.runtime.logs.live_status import WorkerState
from jaxrl.runtime.samplers.sampler import SamplerFn, host_env
from jaxrl.types import Agent, HostEnv, HostEnvs, Key, Metrics, OpenFn, Policy, Rollout


class CentralSampler:
    """A sampler in this process, whose environments are stepped by worker processes that never import jax."""

    def __init__(self, agent: Agent, seeds: Sequence[int], sampler: SamplerFn, num_workers: int, **settings: Any) -> None:
        """
        Args:
          sampler: the order of stepping and acting; see ``runtime.samplers``.
          num_workers: number of workers over all seeds; each seed has at least one.
          settings: keywords of ``Processes``.
        """
        self.opened: list[Processes] = []
        env = in_processes(agent, math.ceil(num_workers / len(seeds)), self.opened, **settings)
        running: Any = sampler(agent._replace(env=env), seeds)
        self.sampler, self.watch = running, running.watch

    def collect(self, policy: Policy, key: Key) -> tuple[Rollout, Metrics]:
        try:
            return self.sampler.collect(policy, key)
        except (EnvironmentFailed, ChildProcessError, TimeoutError) as error:
            raise WorkerFailed(str(error)) from error

    @property
    def restarts(self) -> list[int]:
        """Number of restarts of each worker."""
        return [number for processes in self.opened for number in processes.restarts]

    def workers(self) -> list[WorkerState]:
        """Return the state of each worker. Rates are NaN, since workers step together."""
        return [
            WorkerState(math.nan, math.nan, part.restarts, part.envs, None if part.log is None else str(part.log))
            for processes in self.opened
            for part in processes.parts
        ]

    def close(self) -> None:
        self.sampler.close()


def in_processes(agent: Agent, num_workers: int, opened: list[Processes] | None = None, **settings: Any) -> HostEnv:
    """Return the agent's environment, with each batch stepped by several processes, at most one per environment.

    Args:
      opened: list to which the opened ``Processes`` are appended.
      settings: keywords of ``Processes``.
    """
    env = host_env(agent)

    def anywhere(open: OpenFn) -> OpenFn:
        def start(num_envs: int, seed: int, first_id: int = 0) -> HostEnvs:
            workers = min(num_workers, num_envs)
            processes = Processes(env.name, open, num_envs, seed, first_id, num_workers=workers, **settings)
            if opened is not None:
                opened.append(processes)
            return processes

        return start

    return env._replace(open=anywhere(with_threads(agent).open), open_eval=anywhere(env.open_eval or env.open))


def is_threaded(agent: Agent) -> bool:
    """Return True if the agent's environment steps a batch with its own threads, as envpool does."""
    return str(agent.spec.get("env")).startswith("envpool:")


def with_threads(agent: Agent, num_threads: int = 1) -> HostEnv:
    """Return the agent's environment, with ``num_threads`` threads if it uses threads and its id does not set their number."""
    name = agent.spec.get("env", "")
    if not is_threaded(agent) or "num_threads" in name:
        return host_env(agent)
    env = make_env(name, num_threads=num_threads)
    assert isinstance(env, HostEnv)
    return env

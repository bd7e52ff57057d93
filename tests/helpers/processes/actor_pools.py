"""Pools of actors for tests, and views of them from outside: processes, messages and shared memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.envs.subprocess.descendants import VARIABLE
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.actors.population_pool import PopulationPool
from jaxrl.runtime.actors.transports.shared_memory import ChildProcess
from jaxrl.types import Agent, Policy
from tests.helpers.processes.children import runs, soon

SEGMENTS = Path("/dev/shm")


def pids(pool: ActorPool) -> list[int]:
    """Return the processes of a pool's workers, which must not be collecting if they are on Ray."""
    return [pid_of(member.process) for member in pool.members]


def pid_of(process: Any) -> int:
    if isinstance(process, ChildProcess):
        return process.child.process.pid
    import ray

    actor = process._object._queue.worker._actor
    return int(ray.get(actor.__ray_call__.remote(lambda holder: os.getpid()), timeout=60))


def pids_of_members(pool: PopulationPool) -> list[int]:
    """Return the processes of a population's workers on this machine, in order."""
    return [member._queue.worker.child.process.pid for member in pool.members]


def ray_workers() -> list[int]:
    """Return the processes that hold remote objects on Ray, of this session of tests."""
    ours = [f"{VARIABLE}=".encode(), f"RAY_AUTH_TOKEN_PATH={os.environ['RAY_AUTH_TOKEN_PATH']}".encode()]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes()
            if all(text in environment for text in ours) and (folder / "cmdline").read_bytes().startswith(b"ray::RayHolder"):
                found.append(int(folder.name))
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def workers_of(pid: int) -> list[int]:
    """Return the child processes of a process, started by any of its threads."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def segments() -> set[str]:
    """Return the names of shared memory."""
    return {path.name for path in SEGMENTS.iterdir()} if SEGMENTS.is_dir() else set()


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Assert that the context leaves no process and no shared memory."""
    children, names = set(workers_of(os.getpid())), segments()
    yield
    assert soon(lambda: not [pid for pid in workers_of(os.getpid()) if runs(pid) and pid not in children])
    assert soon(lambda: segments() <= names)  # other programs' segments may disappear


@contextlib.contextmanager
def opened(agent: Agent, seeds: Sequence[int], num_workers: int = 2, **options: Any) -> Iterator[tuple[ActorPool, list[str]]]:
    """Open a pool. Yield it and its messages. Assert that it leaves nothing."""
    notes: list[str] = []
    with nothing_left():
        pool = ActorPool(agent, seeds, num_workers=num_workers, **{"note": notes.append, **options})
        try:
            yield pool, notes
        finally:
            pool.close()


def policies(agent: Agent, seeds: Sequence[int]) -> Callable[[int], Policy]:
    """Return n -> the n-th parameters of each seed, with version n. n may be one number per seed."""
    make = jax.jit(jax.vmap(lambda key: agent.algorithm.policy(agent.init(key).learner)))

    def policy(n: Any) -> Policy:
        version = np.broadcast_to(np.int32(n), len(seeds))
        keys = jax.vmap(jax.random.key)(np.asarray(seeds) + 1000 * version)
        return make(keys)._replace(version=version)

    return policy


def keys(seeds: Sequence[int], iteration: int) -> Any:
    """Return the keys of a rollout: [num_seeds]."""
    return jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), iteration))(np.asarray(seeds))


def kept(tree: Any) -> Any:
    """Return a copy that shares no memory with the original."""
    is_key: Callable[[Any], bool] = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: np.array(jax.random.key_data(x) if is_key(x) else x), tree)

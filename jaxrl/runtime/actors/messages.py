"""Messages between an actor pool and its workers. They are small, since arrays are in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.envs.subprocess.shared_memory import SharedMemoryLayout, layout_of
from jaxrl.rollout.collect import to_rollout
from jaxrl.types import HostEnv, Metrics, PyTree, Rollout

POLICY, ROLLOUT, PROGRESS = "policy", "rollout", "progress"
"""Kinds of shared memory."""


class WorkerJob(NamedTuple):
    """Description from which a worker is built."""

    spec: dict[str, Any]
    env: Callable[[], HostEnv] | None
    """Function that returns the environment, if the spec cannot name it."""
    trust: tuple[str, ...]
    seeds: list[int]
    """Seeds of the run."""
    worker: int
    first_id: int
    num_envs: int
    """Number of each seed's environments, from the pool's ``first_id``-th."""
    num_agents: int
    """Agents in each environment, as ``Env.num_agents``."""
    offset: int
    """Number of environments in preceding processes of the group, to which ``first_id`` is added."""
    after: PyTree
    """Last inputs of the previous worker in this place, [num_seeds, B]; None if it finished no rollout."""
    num_threads: int
    """Threads with which the environments step, if they use threads."""
    gradients: bool
    """Compute a gradient from each rollout."""
    pinned: tuple[int, ...]
    """Cores to which the worker is pinned; empty: the system chooses."""
    cut_short: bool
    """Rollouts may be cut short."""

    @property
    def num_lanes(self) -> int:
        return self.num_envs * max(1, self.num_agents)

    @property
    def lanes(self) -> slice:
        """Its lanes among those of the pool."""
        first = self.first_id * max(1, self.num_agents)
        return slice(first, first + self.num_lanes)


class RolloutSegment(NamedTuple):
    """Announcement of the ``number``-th block of shared memory of a kind, which follows."""

    kind: str
    number: int
    shapes: PyTree
    """Shapes and dtypes of its arrays."""

    @property
    def layout(self) -> SharedMemoryLayout:
        return layout_of(jax.tree.leaves(self.shapes))


class Collect(NamedTuple):
    """Request to collect a rollout."""

    number: int
    """Number of the rollout, in the order of requests."""
    rollout: int
    """Block for the rollout."""
    policy: int
    """Block with the policy that acts."""
    key_data: np.ndarray
    """Data of the iteration's keys, [num_seeds, ...]."""


class Ready(NamedTuple):
    """Report that the environments are open."""


class Shapes(NamedTuple):
    """Shapes of a worker's first rollout. The worker waits for memory for it."""

    rows: PyTree
    """ShapeDtypeStructs of ``Filled``."""


class Done(NamedTuple):
    """Report that a rollout is filled."""

    seconds: dict[str, float]
    """Seconds spent on each of ``diagnostics.PARTS``."""
    losses: Metrics
    """Losses of its gradient, [num_seeds], NumPy; {} if none was computed."""
    rows: int
    """Number of rows that are not padding."""
    part: Any = None
    """The rollout, ``Filled``, of a worker that shares no memory with the pool."""


class Failed(NamedTuple):
    """Report of an exception that ends a worker."""

    message: str
    traceback: str


class Lost(NamedTuple):
    """News that a worker's process is gone."""

    how: str
    """Predicate of the worker, such as "was killed by SIGKILL"."""
    for_good: bool = False
    """No other process can take its place."""


CLOSE = "close"


class Filled(NamedTuple):
    """Rollout of all seeds and workers in shared memory: rows [num_seeds, T, B, ...], and T + 1 of ``inputs``."""

    inputs: PyTree
    acted: PyTree
    came: PyTree
    carry: PyTree
    """[num_seeds, B, ...]"""
    gradient: PyTree
    """[num_seeds, num_workers, ...]; () if none is computed."""


SHARED = Filled(2, 2, 2, 1, 1)
"""Axis along which each field is divided among workers."""


def shapes_of(rows: Filled) -> Filled:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), rows)


def of_all(rows: Filled, num_lanes: int, num_workers: int) -> Filled:
    """Convert the shapes of one worker's part to those of all workers' together."""

    def widened(axis: int, size: int, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype), part)

    sizes = (num_lanes, num_lanes, num_lanes, num_lanes, num_workers)
    return Filled._make(map(widened, SHARED, sizes, rows))


def part_of(rows: Filled, job: WorkerJob) -> Filled:
    """Return views of a worker's part."""

    def cut(axis: int, which: slice, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[(slice(None),) * axis + (which,)], part)

    lanes = job.lanes
    return Filled._make(map(cut, SHARED, (lanes, lanes, lanes, lanes, slice(job.worker, job.worker + 1)), rows))


def rollout_of(rows: Filled, version: np.ndarray, first_id: int = 0) -> Rollout:
    """Convert to a ``Rollout``; ``version``, i32[num_seeds] or [num_seeds, B], is that of the parameters that acted."""
    num_seeds, _, num_lanes = rows.came.reward.shape
    env_id: Any = np.broadcast_to(first_id + np.arange(num_lanes, dtype=np.int32), (num_seeds, num_lanes))
    versions: Any = np.broadcast_to(version.reshape(num_seeds, -1), env_id.shape)
    return to_rollout(rows.inputs, rows.acted, rows.came, rows.carry, env_id, versions)


def plain_leaves(policy: PyTree) -> Sequence[Any]:
    """Return the leaves, with keys replaced by their data."""
    return [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(policy)]


def policy_like(shapes: PyTree, leaves: Sequence[Any]) -> PyTree:
    """Invert ``plain_leaves``."""

    def like(shape: Any, x: Any) -> Any:
        return jax.random.wrap_key_data(x) if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key) else x

    expected, structure = jax.tree.flatten(shapes)
    return structure.unflatten(map(like, expected, leaves))

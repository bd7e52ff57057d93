"""What an actor pool and its workers tell each other: small, as all arrays lie in memory that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.envs.subprocess.shared_memory import SharedMemoryLayout, layout_of
from jaxrl.rollout.collect import Row, to_rollout
from jaxrl.types import HostEnv, Metrics, PyTree, Rollout

POLICY, ROLLOUT, PROGRESS = "policy", "rollout", "progress"
"""Kinds of memory."""


class WorkerJob(NamedTuple):
    """All that a worker is built from."""

    spec: dict[str, Any]
    env: Callable[[], HostEnv] | None
    """Gives the environment, where the spec cannot name it."""
    trust: tuple[str, ...]
    seeds: list[int]
    """Of the run."""
    worker: int
    first_id: int
    num_envs: int
    """Of each seed: from the ``first_id``-th on."""
    offset: int
    """How many environments other processes of the group have before those of the pool: numbers in all go on from there."""
    after: PyTree
    """What the worker before it in this place saw last, [num_seeds, num_envs]; None where no rollout of its is learnt from."""
    num_threads: int
    """With which environments step, where they have threads of their own."""
    gradients: bool
    """Whether it computes one from each rollout."""
    pinned: tuple[int, ...]
    """Cores that it is held to; none: the system chooses."""
    cut_short: bool
    """Whether its rollouts may be."""


class RolloutSegment(NamedTuple):
    """The ``number``-th block of shared memory of a kind, which follows."""

    kind: str
    number: int
    shapes: PyTree
    """Of the arrays in it."""

    @property
    def layout(self) -> SharedMemoryLayout:
        return layout_of(jax.tree.leaves(self.shapes))


class Collect(NamedTuple):
    """Fill a rollout."""

    number: int
    """Of the rollout, in the order of asking."""
    rollout: int
    policy: int
    """Which block holds it, and which the policy that acts."""
    key_data: np.ndarray
    """Of the iteration's keys, [num_seeds, ...]."""


class Ready(NamedTuple):
    """The environments are open."""


class Shapes(NamedTuple):
    """What a worker's first rollout looks like; it waits for memory to put it into."""

    rows: PyTree
    """ShapeDtypeStructs of ``Filled``."""


class Done(NamedTuple):
    """A rollout is filled."""

    seconds: dict[str, float]
    """Spent on it, by ``diagnostics.PARTS``."""
    losses: Metrics
    """Of its gradient, [num_seeds], in NumPy; {} where none was computed."""
    rows: int
    """How many are no padding."""


class Failed(NamedTuple):
    """The last words of a worker in which something was raised."""

    message: str
    traceback: str


CLOSE = "close"


class Filled(NamedTuple):
    """A rollout in shared memory, of all seeds and workers: rows [num_seeds, T, B, ...], one more of ``inputs``."""

    inputs: PyTree
    acted: PyTree
    came: PyTree
    carry: PyTree
    """[num_seeds, B, ...]"""
    gradient: PyTree
    """[num_seeds, num_workers, ...]; () where none is computed."""


SHARED = Filled(2, 2, 2, 1, 1)
"""The axis that is shared out over workers."""


def of_all(rows: Filled, num_envs: int, num_workers: int) -> Filled:
    """The shapes of one worker's part as those of all."""

    def widened(axis: int, size: int, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype), part)

    sizes = (num_envs, num_envs, num_envs, num_envs, num_workers)
    return Filled._make(map(widened, SHARED, sizes, rows))


def part_of(rows: Filled, job: WorkerJob) -> Filled:
    """A worker's part: views."""

    def cut(axis: int, which: slice, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[(slice(None),) * axis + (which,)], part)

    envs = slice(job.first_id, job.first_id + job.num_envs)
    return Filled._make(map(cut, SHARED, (envs, envs, envs, envs, slice(job.worker, job.worker + 1)), rows))


def rollout_of(rows: Filled, version: np.ndarray, first_id: int = 0) -> Rollout:
    """
    Args:
      version: i32[num_seeds] or [num_seeds, B], of the parameters that acted.
      first_id: the number of the first environment.
    """
    action, extras = rows.acted
    num_seeds, _, num_envs = rows.came.reward.shape
    env_id: Any = np.broadcast_to(first_id + np.arange(num_envs, dtype=np.int32), (num_seeds, num_envs))
    versions: Any = np.broadcast_to(version.reshape(num_seeds, -1), env_id.shape)
    return to_rollout(Row(rows.inputs, action, extras, rows.came), rows.inputs, rows.carry, env_id, versions)


def plain_leaves(policy: PyTree) -> Sequence[Any]:
    """The leaves, with the data of keys for keys."""
    return [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(policy)]


def policy_like(shapes: PyTree, leaves: Sequence[Any]) -> PyTree:
    """The inverse of ``plain_leaves``."""
    expected, structure = jax.tree.flatten(shapes)
    return structure.unflatten(
        [
            jax.random.wrap_key_data(x) if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key) else x
            for shape, x in zip(expected, leaves, strict=True)
        ]
    )

"""What an actor pool and its workers tell each other: small, as all arrays lie in memory that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.envs.memory import Layout, layout_of
from jaxrl.types import HostEnv, PyTree

POLICY, ROLLOUT, PROGRESS = "policy", "rollout", "progress"
"""Kinds of memory."""


class Job(NamedTuple):
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
    after: PyTree
    """What the worker before it in this place saw last, [num_seeds, num_envs]; None where no rollout of its is learnt from."""
    num_threads: int
    """With which environments step, where they have threads of their own."""
    pinned: tuple[int, ...]
    """Cores that it is held to; none: the system chooses."""


class Memory(NamedTuple):
    """The ``number``-th block of shared memory of a kind, which follows."""

    kind: str
    number: int
    shapes: PyTree
    """Of the arrays in it."""

    @property
    def layout(self) -> Layout:
        return layout_of(jax.tree.leaves(self.shapes))


class Collect(NamedTuple):
    """Fill a rollout."""

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


ENV_AXIS = Filled(2, 2, 2, 1)
"""The axis that counts environments."""


def of_all(rows: Filled, num_envs: int) -> Filled:
    """The shapes of one worker's rows as those of all."""

    def widened(axis: int, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:axis], num_envs, *x.shape[axis + 1 :]), x.dtype), part)

    return Filled(*map(widened, ENV_AXIS, rows))


def part_of(rows: Filled, first: int, last: int) -> Filled:
    """The environments from ``first`` up to before ``last``: views."""

    def cut(axis: int, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[(slice(None),) * axis + (slice(first, last),)], part)

    return Filled(*map(cut, ENV_AXIS, rows))


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

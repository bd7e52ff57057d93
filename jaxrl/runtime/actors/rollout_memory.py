"""Requested rollouts, and the shared memory that holds them and the parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.envs.subprocess.shared_memory import SharedMemory
from jaxrl.runtime.actors.messages import POLICY, PROGRESS, RolloutSegment
from jaxrl.runtime.system.memory import available_on_host, show_bytes


class Ticket:
    """A requested rollout."""

    def __init__(
        self, number: int, key_data: np.ndarray, policy: int, rollout: int, version: np.ndarray, num_workers: int
    ) -> None:
        self.number, self.key_data, self.policy, self.rollout = number, key_data, policy, rollout
        self.waiting = set(range(num_workers))
        self.acted = [version] * num_workers
        """i32[num_seeds] per worker: version of the parameters that acted."""
        self.losses: list[Any] = [{}] * num_workers
        """Losses of each worker's gradient."""
        self.rows = [0] * num_workers
        """Rows that each worker collected: all, unless it was cut short."""
        self.over = threading.Event()


class Users(list[int]):
    """Number of users of each of some things, which are used again once it is 0."""

    def take(self, users: int = 1) -> int:
        """Return the index of an unused thing, perhaps of a new one, and set its number of users."""
        index = next((i for i, number in enumerate(self) if not number), len(self))
        self[index : index + 1] = [users]
        return index


class Blocks:
    """Blocks of shared memory of one kind, with the number of users of each."""

    def __init__(self, kind: str) -> None:
        self.kind, self.users, self.shapes = kind, Users(), None
        self.memory: list[tuple[SharedMemory, RolloutSegment]] = []
        self.views: list[Any] = []

    def take(self, users: int = 1) -> int:
        """Return an unused block, allocated if necessary, and set its number of users."""
        index = self.users.take(users)
        if index == len(self.memory) and self.shapes is not None:
            self._allocate()
        return index

    def shape(self, shapes: Any) -> None:
        """Set the shapes of the arrays and allocate the blocks, once."""
        if self.shapes is None:
            self.shapes = shapes
            for _ in self.users:
                self._allocate()

    def _allocate(self) -> None:
        header = RolloutSegment(self.kind, len(self.memory), self.shapes)
        needed, available = header.layout.num_bytes, available_on_host()
        if available is not None and needed > available:  # overcommitted memory would get a process killed later
            raise ValueError(
                f"a {self.kind} to share with workers takes {show_bytes(needed)}, and {show_bytes(available)} of memory are "
                "available: use fewer environments or seeds, or a shorter rollout_length"
            )
        memory = SharedMemory(header.layout.num_bytes)
        self.memory.append((memory, header))
        self.views.append(self.arrays(header.number))

    def arrays(self, index: int, when_done: Callable[[], object] | None = None) -> Any:
        memory, header = self.memory[index]
        return jax.tree.unflatten(jax.tree.structure(header.shapes), memory.arrays(header.layout, when_done))

    def close(self) -> None:
        for memory, _ in self.memory:
            memory.close()


class PolicyBlocks(Blocks):
    """Blocks that hold policies."""

    def __init__(self) -> None:
        super().__init__(POLICY)

    def add(self, leaves: Sequence[np.ndarray]) -> int:
        """Store a policy. Return its index, which has one user."""
        self.shape([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves])
        index = self.take()
        for mine, new in zip(self.views[index], leaves, strict=True):
            np.copyto(mine, new)
        return index


class Progress(Blocks):
    """A block where workers report progress, and read which rollouts to cut short."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(PROGRESS)
        self.shape([jax.ShapeDtypeStruct((size,), np.int64) for size in (num_workers, 1)])
        self.rows, self.due = self.views[self.take()]
        """Rows that each worker has completed in all; and one number: rollouts with lower numbers need not be finished."""

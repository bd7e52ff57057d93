"""Rollouts that were asked for, and the memory that they and parameters lie in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.envs.subprocess.shared_memory import SharedMemory
from jaxrl.runtime.actors.messages import PROGRESS, RolloutSegment
from jaxrl.runtime.system.memory import available_on_host, show_bytes


class Ticket:
    """A rollout that was asked for."""

    def __init__(
        self, number: int, key_data: np.ndarray, policy: int, rollout: int, version: np.ndarray, num_workers: int
    ) -> None:
        self.number, self.key_data, self.policy, self.rollout = number, key_data, policy, rollout
        self.waiting = set(range(num_workers))
        self.acted = [version] * num_workers
        """i32[num_seeds] per worker: the parameters that acted."""
        self.losses: list[Any] = [{}] * num_workers
        """Of each worker's gradient."""
        self.rows = [0] * num_workers
        """How many each worker collected: all, unless it was cut short."""
        self.over = threading.Event()


class Blocks:
    """Blocks of shared memory of one kind, and how many users each has."""

    def __init__(self, kind: str) -> None:
        self.kind, self.users, self.shapes = kind, list[int](), None
        self.memory: list[tuple[SharedMemory, RolloutSegment]] = []
        self.views: list[Any] = []

    def take(self, users: int = 1) -> int:
        """One that nobody uses, made if there is none; it has so many users then."""
        index = next((i for i, number in enumerate(self.users) if not number), len(self.users))
        if index == len(self.users):
            self.users.append(0)
            if self.shapes is not None:
                self._allocate()
        self.users[index] = users
        return index

    def shape(self, shapes: Any) -> None:
        """Say what is in them, once it is known."""
        if self.shapes is None:
            self.shapes = shapes
            for _ in self.users:
                self._allocate()

    def _allocate(self) -> None:
        told = RolloutSegment(self.kind, len(self.memory), self.shapes)
        needed, available = told.layout.num_bytes, available_on_host()
        if available is not None and needed > available:  # the system would grant it, and end a process for it later
            raise ValueError(
                f"a {self.kind} to share with workers takes {show_bytes(needed)}, and {show_bytes(available)} of memory are "
                "available: use fewer environments or seeds, or a shorter rollout_length"
            )
        memory = SharedMemory(told.layout.num_bytes)
        self.memory.append((memory, told))
        self.views.append(self.arrays(told.number))

    def arrays(self, index: int, when_done: Callable[[], object] | None = None) -> Any:
        memory, told = self.memory[index]
        return jax.tree.unflatten(jax.tree.structure(told.shapes), memory.arrays(told.layout, when_done))

    def close(self) -> None:
        for memory, _ in self.memory:
            memory.close()


class Progress:
    """Memory in which workers tell how far they are, and are told which rollouts to cut short."""

    def __init__(self, num_workers: int) -> None:
        told = RolloutSegment(PROGRESS, 0, [jax.ShapeDtypeStruct((size,), np.int64) for size in (num_workers, 1)])
        self.memory = SharedMemory(told.layout.num_bytes), told
        self.rows, self.due = self.memory[0].arrays(told.layout)
        """Of each worker, the rows that it has done in all; and one number: rollouts with lower ones need not be finished."""
        self.rows[:], self.due[:] = 0, 0

    def close(self) -> None:
        self.memory[0].close()

"""Rows of environments in worker processes, by number."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.envs.subprocess.processes import Processes
from tests.helpers.batches import ACTIONS

NOTHING = np.zeros(4, int)


def at(environment: int, how: str) -> np.ndarray:
    """Return actions at which one environment of four fails."""
    return np.where(np.arange(4) == environment, ACTIONS[how], 0)


def seed_of(restart: int, first: int, seed: int = 0) -> int:
    return int(np.random.SeedSequence([seed, first, restart]).generate_state(1)[0] >> 1)


def numbers(envs: Any) -> list[int]:
    return [part.child.process.pid for part in envs._parts]


def shared(envs: Processes) -> list[bool]:
    """Return, for each process, True if its answers are in shared memory."""
    return [not part._is_own for part in envs._parts]

"""Short runs into a folder, and their final states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime.run import run
from jaxrl.runtime.training_loop.on_chunk import Chunk
from jaxrl.types import Agent
from tests.helpers.agents import cartpole
from tests.helpers.processes.chaos import TIMES


def at(iteration: int, do: Callable[[], Any]) -> Callable[[Chunk], None]:
    """Return an ``on_chunk`` that calls ``do`` once the run has reached an iteration."""

    def on_chunk(chunk: Chunk) -> None:
        if chunk.iteration == iteration:
            do()

    return on_chunk


def train(agent: Agent, out: Path | None, total_steps: int = 32 * 12, **settings: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Run chunks of two iterations, evaluated every four, with a checkpoint after each chunk if the background thread has
    time."""
    defaults = {"chunk_iterations": 2, "eval_every": 4, "eval_episodes": 3, "seeds": [3, 5], "quiet": True, "tensorboard": False}
    return run(agent, total_steps, out=out, **{**defaults, "checkpoint_every": 1e-6, **settings})


def rows_of(algorithm: str) -> int:
    """Return the rows of twelve iterations, plus those of the warm-up."""
    return cartpole(algorithm).steps_per_iteration * (12 + cartpole(algorithm).algorithm.warmup_iterations)


class Killed(Exception):
    """Stands for a kill: it is not caught, and nothing is finished."""


def kill() -> None:
    raise Killed


def assert_same_history(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        if key not in TIMES:
            np.testing.assert_array_equal(a[key], b[key], err_msg=key)

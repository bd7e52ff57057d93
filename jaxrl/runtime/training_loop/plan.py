"""Checked arguments of a run: seeds, hyperparameters, and the iterations at which chunks end and evaluations are due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.runtime.logs.records import Record
from jaxrl.runtime.training_loop.evaluation_pace import SHARE, episodes_within, is_slow
from jaxrl.settings.validation import check_count, check_hyperparam, check_number, whole
from jaxrl.training import MAX_EPISODES, num_iterations
from jaxrl.types import Agent

NUM_CHUNKS, NUM_EVALUATIONS = 50, 20
"""Approximate numbers of chunks and evaluations per run, by default."""

MAX_CHUNK_ROWS = 250_000
"""Maximum rows of a chunk per seed, by default: a run reacts to signals at the end of a chunk."""

MAX_CALL_ROWS = 2**24
"""Maximum rows per seed in one call of a program. Metrics are summed in 32 bits within a call, and in 64 bits between calls."""

MAX_SEEDS = 1_000_000
"""Maximum number of seeds. A larger number is a mistake, and would exhaust memory before any other check."""

ON_NAN = ("drop", "stop")


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return the list of seeds; ``n`` means 0 … n−1."""
    seeds = whole(seeds)
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        if seeds < 1:
            raise ValueError(f"seeds={seeds} must be at least 1 (a number of seeds), or a list of seeds")
        return list(range(check_count("seeds", seeds, at_most=MAX_SEEDS)))
    try:
        listed = np.asarray(seeds).tolist()
    except ValueError:  # a ragged list
        listed = None
    if not isinstance(listed, list) or not listed or not all(type(seed) is int for seed in listed):
        raise TypeError(f"seeds={seeds!r} must be a number of seeds or a list of integers")
    if outside := [seed for seed in listed if not 0 <= seed < 2**32]:
        raise ValueError(f"seeds={seeds!r}: {outside[0]} is outside 0 … 2**32 - 1")
    return listed


def check_hyperparams(agent: Agent, hyperparams: Any, num_seeds: int) -> dict[str, Any] | None:
    """Return the hyperparameters to change, each a float or f32[num_seeds]."""
    if hyperparams is None:
        return None
    values = hyperparams._asdict() if hasattr(hyperparams, "_asdict") else hyperparams
    if not isinstance(values, Mapping):
        raise TypeError(f"hyperparams must be a mapping or the algorithm's NamedTuple, not {type(values).__name__}")
    checked: dict[str, Any] = {}
    for name, value in values.items():
        for number in np.ravel(value).tolist():
            check_hyperparam(type(agent.hyperparams), name, number)
        array = np.asarray(value, np.float32)
        if array.shape not in ((), (num_seeds,)):
            raise ValueError(
                f"hyperparams[{name!r}] has shape {array.shape}: it must be one number, or one per seed ({num_seeds},)"
            )
        checked[name] = array if array.ndim else float(array)
    return checked


def check_members(seeds: Sequence[int], hyperparams: Mapping[str, Any] | None = None) -> None:
    """Check that no two members of a run are equal. A seed may occur several times with different hyperparameters."""
    columns = [np.broadcast_to(values, len(seeds)).tolist() for values in (hyperparams or {}).values()]
    members = list(zip(seeds, *columns, strict=True))
    if twice := [member for member in members if members.count(member) > 1]:
        same = " with the same hyperparameters" if hyperparams else ""
        raise ValueError(
            f"seeds={seeds!r}: {twice[0][0]} occurs twice{same}: remove it, or give each occurrence other hyperparameters"
        )


class TrainingPlan(NamedTuple):
    """Iterations at which a run ends chunks and evaluates. All count training iterations, after the warm-up."""

    iterations: int
    warmup_iterations: int
    rows_per_iteration: int
    chunk_iterations: int
    eval_every: int
    eval_episodes: int
    stop_at: float | None
    on_nan: str
    eval_explore: bool
    eval_share: float | None = None
    """Rows that evaluations may step per row of training (see ``evaluation_pace``); None: no limit."""

    @property
    def total_steps(self) -> int:
        return self.rows_at(self.iterations)

    @property
    def call_iterations(self) -> int:
        """Maximum iterations in one call of the driver. A chunk may take several calls."""
        return max(1, MAX_CALL_ROWS // self.rows_per_iteration)

    def rows_at(self, trained: int) -> int:
        """Return the rows per seed after ``trained`` iterations of training, including the warm-up."""
        return (self.warmup_iterations + trained) * self.rows_per_iteration

    def stops(self, iteration: int = 0) -> Iterator[int]:
        """Yield the later iterations that end a chunk: multiples of ``chunk_iterations``, evaluations, and the last."""
        while iteration < self.iterations:
            ahead = [iteration + every - iteration % every for every in (self.chunk_iterations, self.eval_every) if every]
            iteration = min(*ahead, self.iterations)
            yield iteration

    def episodes(self, trained: int, records: Sequence[Record]) -> int:
        """Return the number of episodes of the evaluation after ``trained`` iterations; 0 if none is due."""
        if not self.eval_every or (trained % self.eval_every and trained < self.iterations):
            return 0
        if self.eval_share is None or trained >= self.iterations:
            return self.eval_episodes
        return episodes_within(self.eval_share, self.eval_episodes, self.rows_at(trained), records, self.rows_at(0))

    def describe(self) -> dict[str, Any]:
        return {"total_steps": self.total_steps, **self._asdict()}


def make_plan(
    agent: Agent,
    total_steps: int,
    eval_every: int | None = None,
    eval_episodes: int = 128,
    chunk_iterations: int | None = None,
    stop_at: float | None = None,
    on_nan: str = "drop",
    *,
    eval_explore: bool = False,
    exact_steps: bool = False,
    before: Mapping[str, Any] | None = None,
) -> TrainingPlan:
    """Return a run's plan. It depends only on the arguments, never on time.

    Args:
      before: ``TrainingPlan.describe`` of the run that is resumed. It provides what the other arguments leave open.
    """
    iterations = num_iterations(agent, total_steps, exact_steps=exact_steps)
    if before:
        chunk_iterations = before["chunk_iterations"] if chunk_iterations is None else chunk_iterations
        eval_every = before["eval_every"] if eval_every is None else eval_every
    bounded = before is None and eval_every is None and stop_at is None and is_slow(agent.env)
    eval_share = before.get("eval_share") if before else SHARE if bounded else None
    if chunk_iterations is None:
        chunk_iterations = min(-(-iterations // NUM_CHUNKS), max(1, MAX_CHUNK_ROWS // agent.steps_per_iteration))
    chunk_iterations = check_count("chunk_iterations", chunk_iterations)
    if eval_every is None:
        eval_every = chunk_iterations * max(1, -(-iterations // (chunk_iterations * NUM_EVALUATIONS)))
    eval_every = check_count("eval_every", eval_every, at_least=0)
    eval_episodes = check_count("eval_episodes", eval_episodes, at_most=MAX_EPISODES)
    if not isinstance(eval_explore, bool):
        raise TypeError(f"eval_explore={eval_explore!r} must be True (evaluations act as in training) or False (greedily)")
    if on_nan not in ON_NAN:
        raise ValueError(f"on_nan={on_nan!r} is unknown: choose one of {ON_NAN}")
    if stop_at is not None:
        check_number("stop_at", stop_at)
        if not eval_every:
            raise ValueError(
                f"stop_at={stop_at} needs evaluations, but eval_every=0 disables them: set eval_every, or leave stop_at out"
            )
        stop_at = float(stop_at)
    warmup, rows = agent.algorithm.warmup_iterations, agent.steps_per_iteration
    return TrainingPlan(
        iterations, warmup, rows, chunk_iterations, eval_every, eval_episodes, stop_at, on_nan, eval_explore, eval_share
    )


def with_length_of(request: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``request`` with the length of ``before`` if it is longer, for comparison: a run may be extended."""
    if request["total_steps"] <= before["total_steps"]:
        return dict(request)
    agreed = {**request, **{name: before[name] for name in ("total_steps", "iterations")}}
    if total_steps := (before["hyperparams"] or {}).get("total_steps"):
        agreed["hyperparams"] = {**(request["hyperparams"] or {}), "total_steps": total_steps}
    return agreed

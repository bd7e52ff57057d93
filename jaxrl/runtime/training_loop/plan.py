"""What a run was asked for, checked before anything starts: its seeds, its hyperparameters, and where it stops to look around."""

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
"""About as many of each in a run, unless it is told otherwise."""

MAX_CHUNK_ROWS = 250_000
"""Per seed, unless told otherwise: a signal is answered at the end of a chunk."""

MAX_CALL_ROWS = 2**24
"""Per seed: metrics are summed in 32 bits while a program runs, and in 64 between its calls."""

MAX_SEEDS = 1_000_000
"""A larger number is a mistake, and would take all memory before anything else could say so."""

ON_NAN = ("drop", "stop")


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """The seeds themselves; ``n`` means 0 … n−1."""
    seeds = whole(seeds)
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        if seeds < 1:
            raise ValueError(f"seeds={seeds} must be at least 1 (that many seeds), or a list of seeds")
        return list(range(check_count("seeds", seeds, at_most=MAX_SEEDS)))
    try:
        listed = np.asarray(seeds).tolist()
    except ValueError:  # its parts have several shapes
        listed = None
    if not isinstance(listed, list) or not listed or not all(type(seed) is int for seed in listed):
        raise TypeError(f"seeds={seeds!r} must be a number of seeds or a list of integers")
    if outside := [seed for seed in listed if not 0 <= seed < 2**32]:
        raise ValueError(f"seeds={seeds!r}: {outside[0]} is outside 0 … 2**32 - 1")
    return listed


def check_hyperparams(agent: Agent, hyperparams: Any, num_seeds: int) -> dict[str, Any] | None:
    """The hyperparameters to change, each a float or f32[num_seeds]."""
    if hyperparams is None:
        return None
    given = hyperparams._asdict() if hasattr(hyperparams, "_asdict") else hyperparams
    if not isinstance(given, Mapping):
        raise TypeError(f"hyperparams must be a mapping or the rule's NamedTuple, not {type(given).__name__}")
    checked: dict[str, Any] = {}
    for name, value in given.items():
        for one in np.ravel(value).tolist():
            check_hyperparam(type(agent.hyperparams), name, one)
        array = np.asarray(value, np.float32)
        if array.shape not in ((), (num_seeds,)):
            raise ValueError(
                f"hyperparams[{name!r}] has shape {array.shape}: it must be one number, or one per seed ({num_seeds},)"
            )
        checked[name] = array if array.ndim else float(array)
    return checked


def check_members(seeds: Sequence[int], hyperparams: Mapping[str, Any] | None = None) -> None:
    """Refuse two members of a run that are the same: one seed may occur several times with different hyperparameters."""
    columns = [np.broadcast_to(values, len(seeds)).tolist() for values in (hyperparams or {}).values()]
    members = list(zip(seeds, *columns, strict=True))
    if twice := [member for member in members if members.count(member) > 1]:
        same = " with the same hyperparameters" if hyperparams else ""
        raise ValueError(f"seeds={seeds!r}: {twice[0][0]} occurs twice{same}, and would only repeat itself")


class TrainingPlan(NamedTuple):
    """Where a run stops to look around; all numbers are of iterations of training, after the warm-up."""

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
    """Rows that evaluations may step per row of training (see ``pace``); None: as many as they take."""

    @property
    def total_steps(self) -> int:
        return self.rows_at(self.iterations)

    @property
    def call_iterations(self) -> int:
        """At most so many in one call of the driver; a chunk may be several."""
        return max(1, MAX_CALL_ROWS // self.rows_per_iteration)

    def rows_at(self, trained: int) -> int:
        """Per seed, after so many iterations of training."""
        return (self.warmup_iterations + trained) * self.rows_per_iteration

    def stops(self, now: int = 0) -> Iterator[int]:
        """The iterations after ``now`` at which a chunk ends: multiples of ``chunk_iterations``, evaluations, and the end."""
        while now < self.iterations:
            ahead = [now + every - now % every for every in (self.chunk_iterations, self.eval_every) if every]
            now = min(*ahead, self.iterations)
            yield now

    def episodes(self, trained: int, records: Sequence[Record]) -> int:
        """Of the evaluation after so many iterations; 0 where none is due."""
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
    """A run's plan, from its length alone: never from a clock.

    Args:
      before: ``TrainingPlan.describe`` of the run that goes on, which chose what is left open here.
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
            raise ValueError(f"stop_at={stop_at} needs evaluations, and eval_every=0 leaves them out")
        stop_at = float(stop_at)
    warmup, rows = agent.algorithm.warmup_iterations, agent.steps_per_iteration
    return TrainingPlan(
        iterations, warmup, rows, chunk_iterations, eval_every, eval_episodes, stop_at, on_nan, eval_explore, eval_share
    )


def with_length_of(request: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """``request`` as far as it must agree with what an earlier call asked for: a run may be made longer."""
    if request["total_steps"] <= before["total_steps"]:
        return dict(request)
    agreed = {**request, **{name: before[name] for name in ("total_steps", "iterations")}}
    if given := (before["hyperparams"] or {}).get("total_steps"):
        agreed["hyperparams"] = {**(request["hyperparams"] or {}), "total_steps": given}
    return agreed

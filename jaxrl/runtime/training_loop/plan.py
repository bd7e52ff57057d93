"""Plan of a run: the iterations at which chunks end and evaluations are due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jaxrl.runtime.logs.records import Record
from jaxrl.runtime.training_loop.evaluation_pace import SHARE, episodes_within, is_slow
from jaxrl.runtime.training_loop.run_config import Evaluations, RunConfig
from jaxrl.training import num_iterations
from jaxrl.types import Agent

NUM_CHUNKS, NUM_EVALUATIONS = 50, 20
"""Approximate numbers of chunks and evaluations per run, by default."""

MAX_CHUNK_ROWS = 250_000
"""Maximum rows of a chunk per seed, by default: a run reacts to signals at the end of a chunk."""

MAX_CALL_ROWS = 2**24
"""Maximum rows per seed in one call of a program. Metrics are summed in 32 bits within a call, and in 64 bits between calls."""


class TrainingPlan(NamedTuple):
    """Iterations at which a run ends chunks and evaluates. All count training iterations, after the warm-up."""

    config: RunConfig
    """With whole iterations in ``total_steps``, and numbers in ``chunk_iterations`` and ``eval_every``."""
    iterations: int
    warmup_iterations: int
    rows_per_iteration: int
    eval_share: float | None = None
    """Rows that evaluations may step per row of training (see ``evaluation_pace``); None: no limit."""

    @property
    def total_steps(self) -> int:
        return self.config.total_steps

    @property
    def chunk_iterations(self) -> int:
        assert self.config.chunk_iterations is not None
        return self.config.chunk_iterations

    @property
    def evaluation(self) -> Evaluations:
        return self.config.evaluation

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
            lengths = (self.chunk_iterations, self.evaluation.eval_every)
            iteration = min(*(iteration + every - iteration % every for every in lengths if every), self.iterations)
            yield iteration

    def episodes(self, trained: int, records: Sequence[Record]) -> int:
        """Return the number of episodes of the evaluation after ``trained`` iterations; 0 if none is due."""
        every, episodes = self.evaluation.eval_every, self.evaluation.eval_episodes
        if not every or (trained % every and trained < self.iterations):
            return 0
        if self.eval_share is None or trained >= self.iterations:
            return episodes
        return episodes_within(self.eval_share, episodes, self.rows_at(trained), records, self.rows_at(0))

    def request(self) -> dict[str, Any]:
        """Return what ``config.json`` stores under ``run``: settings that are compared, and the iterations that follow."""
        return self.config.as_plain(compared=True) | {name: x for name, x in self._asdict().items() if name != "config"}


def make_plan(
    agent: Agent, config: RunConfig, before: Mapping[str, Any] | None = None, *, exact_steps: bool = False
) -> TrainingPlan:
    """Return a run's plan. It depends only on the arguments, never on time.

    Args:
      before: ``TrainingPlan.request`` of the run that is resumed. It provides what the settings leave open.

    Raises:
      ValueError: ``stop_at`` in a game of two players.
    """
    if config.evaluation.stop_at is not None and agent.env.players == 2:
        raise ValueError(
            f"stop_at={config.evaluation.stop_at:g}: returns in {agent.env.name}, a game of two players, do not "
            "measure strength, as both sides learn; leave stop_at out, and compare policies with jaxrl arena"
        )
    iterations = num_iterations(agent, config.total_steps, exact_steps=exact_steps)
    warmup, rows = agent.algorithm.warmup_iterations, agent.steps_per_iteration
    chunk, eval_every = config.chunk_iterations, config.evaluation.eval_every
    bounded = before is None and eval_every is None and config.evaluation.stop_at is None and is_slow(agent.env)
    eval_share = before.get("eval_share") if before else SHARE if bounded else None
    if before:
        chunk = before["chunk_iterations"] if chunk is None else chunk
        eval_every = before["eval_every"] if eval_every is None else eval_every
    if chunk is None:
        chunk = min(-(-iterations // NUM_CHUNKS), max(1, MAX_CHUNK_ROWS // rows))
    config = replace(config, total_steps=(warmup + iterations) * rows, chunk_iterations=chunk)
    if eval_every is None:
        eval_every = chunk * max(1, -(-iterations // (chunk * NUM_EVALUATIONS)))
    config = replace(config, evaluation=replace(config.evaluation, eval_every=eval_every))
    return TrainingPlan(config, iterations, warmup, rows, eval_share)


def with_length_of(request: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``request`` with the length of ``before`` if it is longer, for comparison: a run may be extended."""
    if request["total_steps"] <= before["total_steps"]:
        return dict(request)
    agreed = {**request, **{name: before[name] for name in ("total_steps", "iterations")}}
    if total_steps := (before["hyperparams"] or {}).get("total_steps"):
        agreed["hyperparams"] = {**(request["hyperparams"] or {}), "total_steps": total_steps}
    return agreed

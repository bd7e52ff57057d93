"""``Session``: the loop of a run over chunks, and everything that happens between two chunks."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.metrics import merge, widened
from jaxrl.runtime.checkpoint.convert_states import with_buffers, with_total_steps
from jaxrl.runtime.checkpoint.transfer import read_source, warm_start
from jaxrl.runtime.console.progress import Progress, duration
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs import records as logs
from jaxrl.runtime.logs.records import (
    EVALUATION_EPISODES,
    EVALUATION_RETURN,
    EVALUATION_TIME,
    Record,
    as_arrays,
    mean_over_seeds,
)
from jaxrl.runtime.system.compiling import Abandoned, waiting_unless
from jaxrl.runtime.trainers.trainer import Driver
from jaxrl.runtime.training_loop.evaluations import Evaluations
from jaxrl.runtime.training_loop.on_chunk import Chunk, OnChunk, changed_seeds, check_values
from jaxrl.runtime.training_loop.pace import Pace
from jaxrl.runtime.training_loop.plan import TrainingPlan
from jaxrl.runtime.training_loop.reporting import Blanks, divergence, evaluations_in_words, spent
from jaxrl.runtime.training_loop.run_files import RunFiles
from jaxrl.runtime.training_loop.signals import Interrupt
from jaxrl.types import Metrics, PyTree
from jaxrl.xla import cache_blocking


@dataclass(eq=False)
class Session:
    """State of the loop, apart from the agents' states."""

    driver: Driver
    seeds: Sequence[int]
    plan: TrainingPlan
    progress: Progress
    files: RunFiles | None = None
    on_chunk: OnChunk | None = None

    def __post_init__(self) -> None:
        self.history: list[Record] = []
        self.unlogged: list[Record] = []
        self.interrupt, self.group = Interrupt(), current()
        self.iterates_singly = hasattr(self.driver, "after_iteration")
        """True if the driver returns to Python after each iteration."""
        self.pace = Pace(self.plan.iterations, lambda: self.compile_seconds, skip_first=self.iterates_singly)
        self.begun_at = 0
        """Iterations of training after which this process started or resumed the run."""
        self.stopped_by = 0
        """Number of the signal by which all processes agreed to stop; 0: none."""
        self.told_of_interrupt = False
        self.trained = 0
        """Iterations of training so far. The number of an iteration also counts the warm-up."""
        self.env_steps = np.zeros(len(self.seeds), np.int64)
        self.diverged = np.zeros(len(self.seeds), bool)
        self.best = -np.inf
        self.blanks = Blanks(self.seeds, self.progress.note)
        self.evaluations = Evaluations(self.driver, self.plan, self.blanks, self.fetch, self.clock)
        self.start = time.perf_counter()

    def go(self, hyperparams: Any, init_from: Any, init_which: str, title: str) -> tuple[PyTree, str]:
        """Train from begin to end. Return the states, or None if a signal arrived before there were any, and a summary."""
        states: PyTree = None
        cached_bytes = self.files.cached_bytes if self.files else None
        try:
            with waiting_unless(self.may_leave), cache_blocking.choice(cached_bytes):
                states = self.train(self.begin(hyperparams, init_from, init_which))
        except Abandoned:
            self.stopped_by = self.interrupt.requested
        return states, self.finish(states, title)

    def may_leave(self) -> bool:
        """Return True if a signal arrived and this process has trained nothing yet that would be lost."""
        return bool(self.interrupt.requested) and self.group.is_alone and self.trained == self.begun_at

    def begin(self, hyperparams: Any, init_from: Any, init_which: str = "best") -> PyTree:
        """Return the states to start from: those of the last checkpoint in the folder, or new ones."""
        if self.files and self.files.can_resume:
            self.files.compare_source(init_from, init_which)
            target = self.driver.shapes(hyperparams)
            states, step, records = self.files.resume(target)
            if jax.tree.structure(states) != jax.tree.structure(target):
                # The rows of the warm-up's environments are followed by those of the interrupted run's environments.
                fresh = self.driver.init(hyperparams)
                states = self.driver.mark_discontinuity(with_buffers(states, fresh, self.driver.agent.algorithm.buffers))
                self.progress.note(
                    "the replay buffer was not saved, and a warm-up filled a new one: this run is not bit-equal to an "
                    "uninterrupted one"
                )
            if "total_steps" in (hyperparams or {}):
                states = with_total_steps(states, hyperparams["total_steps"])
            self.restore_progress(step - self.plan.warmup_iterations, records)
            self.progress.note(f"resumed at step {self.rows:,}{self.files.moved}")
            if self.ended is None:
                self.progress.compiling()
            return self.driver.adopt(states, step)
        if self.files:
            init_from, init_which = self.files.begin(init_from, init_which)
        source = None if init_from is None else read_source(init_from, init_which)
        if self.files:
            self.files.announce()
        self.progress.compiling()
        states = self.driver.init(hyperparams)
        if self.plan.warmup_iterations:
            self.env_steps = np.asarray(self.fetch(states.warmup_rows), np.int64)
        if source is not None:
            states, report = warm_start(states, source, self.driver.agent.algorithm.transferable_fields)
            self.progress.note(report)
        return states

    def restore_progress(self, trained: int, records: Sequence[Record]) -> None:
        """Restore counters and history as they were after ``trained`` iterations of training."""
        self.trained = self.begun_at = trained
        self.env_steps = np.full(len(self.seeds), self.plan.rows_at(trained))
        self.history = list(records)
        if records:
            self.env_steps = np.asarray(records[-1]["env_steps"], np.int64)
            self.diverged = np.asarray(records[-1]["diverged"], bool)
            self.start -= records[-1]["seconds"]
            self.evaluations.seconds = records[-1].get(EVALUATION_TIME, 0.0) * records[-1]["seconds"]
            self.best = max(map(self.evaluations.score, records))
            if self.best > -np.inf and self.files and not self.files.saver.has_best():
                self.best = -np.inf

    def train(self, states: PyTree) -> PyTree:
        """Train until the plan ends, or until there is a reason to stop earlier."""
        if not self.asked_to_stop() and self.plan.evaluation.eval_every and not (self.trained or self.history):
            record = self.record(states, np.nan)  # learning curves begin before training
            self.keep(states, record)
            self.progress.update(record, np.nan, self.compile_seconds)
        if self.lacks_last_evaluation and not self.asked_to_stop():
            self.repeat_last_evaluation(states)
        self.pace.begin(self.trained)
        for stop in self.plan.stops(self.trained):
            if self.asked_to_stop() or self.ended:
                break
            states, record = self.chunk(states, stop)
            if not record:
                break
            eta = self.pace.eta(self.trained)
            self.progress.update(record, eta, self.compile_seconds, getattr(self.driver, "workers", list)())
        return states

    @property
    def lacks_last_evaluation(self) -> bool:
        """True if training has ended, and the evaluation after it failed."""
        due = self.trained >= self.plan.iterations and self.plan.episodes(self.trained, self.history[:-1])
        return bool(due and self.history and not self.diverged.all()) and self.history[-1].get(EVALUATION_EPISODES, 1) == 0

    def repeat_last_evaluation(self, states: PyTree) -> None:
        record = self.history.pop()
        if self.files:
            self.files.forget_last_record()
        record |= self.evaluations.evaluate(states, self.trained, self.history, self.diverged)
        self.keep(states, record)

    def asked_to_stop(self) -> bool:
        """Return True if any process of the group received a signal. All stop at the same iteration."""
        agreed = max(self.group.gather(self.interrupt.requested))
        self.stopped_by = self.stopped_by or agreed
        return bool(self.stopped_by)

    @property
    def ended(self) -> str | None:
        """Reason why there is nothing left to do; None while there is."""
        if self.diverged.all():
            return "stopped, since all seeds diverged,"
        if self.trained >= self.plan.iterations and self.failure is None:
            return "done"
        if self.failure is not None:
            who = "workers" if isinstance(self.failure, WorkerFailed) else "an environment"
            return f"stopped, since {who} failed,"
        if self.plan.config.on_nan == "stop" and self.diverged.any():
            return "stopped, since a seed diverged,"
        last = self.history[-1] if self.trained and self.history else {}
        stop_at = self.plan.evaluation.stop_at
        if stop_at is not None and mean_over_seeds(last.get(EVALUATION_RETURN, np.nan)) >= stop_at:
            return f"stopped, since the evaluation return reached {stop_at:g},"
        return None

    @property
    def failure(self) -> Exception | None:
        """Exception that ended training early, to be raised after everything is saved; None if there was none."""
        return getattr(self.driver, "failure", None) or self.evaluations.failure

    @property
    def iteration(self) -> int:
        return self.plan.warmup_iterations + self.trained

    @property
    def rows(self) -> int:
        return self.plan.rows_at(self.trained)

    def record(self, states: PyTree, sps: float) -> Record:
        """Return the run's counters, and the results of an evaluation if one is due."""
        record = {
            "iteration": self.iteration,
            "rows": self.rows,
            "env_steps": self.env_steps,
            "seconds": 0.0,
            "sps": sps,
            "diverged": self.diverged,
            **self.evaluations.evaluate(states, self.trained, self.history, self.diverged),
        }
        record["seconds"] = time.perf_counter() - self.start
        if self.plan.evaluation.eval_every:
            record[EVALUATION_TIME] = self.evaluations.seconds / record["seconds"]
        return record

    def chunk(self, states: PyTree, stop: int) -> tuple[PyTree, Record]:
        """Train until iteration ``stop``, evaluate if an evaluation is due, log, and save if a checkpoint is due."""
        begin, before = self.clock(), self.diverged
        states, metrics, done = self.iterate(states, stop - self.trained)
        if not done:  # see `failure`
            return states, {}
        stop = self.trained + done
        seconds = self.clock() - begin
        valid = logs.env_steps(metrics, (stop - self.trained) * self.plan.rows_per_iteration)
        self.trained, self.env_steps = stop, self.env_steps + valid
        self.report_diverged(self.diverged & ~before, states)

        record = self.record(states, valid.sum() / seconds)
        record |= {name: np.where(self.diverged, np.nan, x) for name, x in logs.close_per_seed(metrics).items()}
        if self.on_chunk:
            new_states = self.on_chunk(Chunk(record["iteration"], record["rows"], states, record))
            check_values(record, len(self.seeds))
            if new_states is not None:
                # A frozen seed with new parameters continues; its next rows do not follow the stored ones.
                revived = self.diverged
                if revived.any():
                    revived = revived & changed_seeds(states, new_states, self.group.fetch)
                self.diverged = record["diverged"] = self.diverged & ~revived
                states = self.driver.place(new_states)
                if revived.any() and self.driver.agent.algorithm.mark_discontinuity is not None:
                    states = self.driver.mark_discontinuity(states, revived)
        self.keep(states, record)
        return states, record

    def iterate(self, states: PyTree, iterations: int) -> tuple[PyTree, Metrics, int]:
        """Train for ``iterations``, in calls whose metrics fit 32 bits. Return states, metrics on the host, and the number of
        iterations done, which is lower after a failure or a signal."""
        parts: list[Metrics] = []
        done = 0
        while done < iterations and not (parts and self.diverged.all()) and not self.cut_short:
            count = min(iterations - done, self.plan.call_iterations)
            if self.iterates_singly:
                self.driver.after_iteration = functools.partial(self.after_iteration, done)  # type: ignore[attr-defined]
            states, metrics, alive = self.driver.iterate(states, count, ~self.diverged)
            metrics, alive = self.fetch((metrics, alive))
            count = self.driver.done if self.cut_short else count
            parts += [widened(metrics)] if count else []
            self.diverged, done = ~alive, done + count
        return states, functools.reduce(merge, parts) if parts else {}, done if self.cut_short else iterations

    @property
    def cut_short(self) -> bool:
        """True if a chunk ends before its last iteration."""
        return self.failure is not None or (self.iterates_singly and self.group.is_alone and bool(self.interrupt.requested))

    def after_iteration(self, before: int, done: int) -> bool:
        """Show the progress within a chunk, of ``before + done`` iterations. Return False if the chunk is to end here."""
        trained = self.trained + before + done
        self.progress.advance(self.plan.rows_at(trained), self.pace.eta(trained))
        return not self.cut_short

    def keep(self, states: PyTree, record: Record) -> None:
        """Log a record, keep its policies if they are the best so far, and save if a checkpoint is due."""
        numbers = {key: value for key, value in record.items() if np.asarray(value).dtype.kind == "f"}
        record |= {key: self.blanks.leave_out(key, value, np.isinf(value), self.rows) for key, value in numbers.items()}
        self.history.append(record)
        if self.files is None:
            return
        if (score := self.evaluations.score(record)) > self.best:
            self.best = score
            self.files.saver.set_best(self.driver.policies(states), record["iteration"])
        self.unlogged.append(record)
        if self.trained:  # a run whose first chunk fails leaves its folder unchanged
            for each in self.unlogged:
                self.files.log(each)
            self.unlogged.clear()
            self.files.save_if_due(states, record["iteration"])

    def fetch(self, tree: Any) -> Any:
        """Return the results on the host. Waits in Python, so that signals are handled while the device computes."""
        waiting = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
        while not all(leaf.is_ready() for leaf in waiting):  # type: ignore[attr-defined]
            if self.interrupt.requested and not self.told_of_interrupt:
                self.told_of_interrupt = True
                self.progress.note("stopping after this chunk; Ctrl-C again to stop at once")
            time.sleep(0.002)
        return self.group.fetch(tree)

    def report_diverged(self, new: np.ndarray, states: PyTree) -> None:
        if new.any():
            look = getattr(self.driver, "suspects", None)
            suspects = look and self.fetch(look(states, new))
            for line in divergence(self.seeds, new, suspects, self.rows, self.driver.agent.env.num_agents):
                self.progress.note(line)

    def finish(self, states: PyTree, title: str) -> str:
        """Write the final files, and return a one-line summary."""
        history, took = as_arrays(self.history), duration(time.perf_counter() - self.start)
        files = self.files if self.trained and history and states is not None else None
        if files:
            files.finish(states, self.iteration, history, title=title, subtitle=f"{self.rows:,} steps per seed in {took}")
        parts = [f"{self.ended or 'stopped'} at step {self.rows:,} of {self.plan.total_steps:,} after {took}"]
        parts[0] += spent({"compilation": self.compile_seconds, "evaluation": self.evaluations.seconds})
        parts += evaluations_in_words(history, self.plan.total_steps, online=self.driver.agent.online)
        if files:
            parts.append(f"results in {files.folder.shown}")
        if self.files and (not self.ended or (self.failure and self.files.are_kept)):
            parts.append(f"resume with: {self.files.resume_command}")
        return "; ".join(parts)

    @property
    def compile_seconds(self) -> float:
        return getattr(self.driver, "compile_seconds", 0.0)

    def clock(self) -> float:
        """Return the time in seconds, without compilation."""
        return time.perf_counter() - self.compile_seconds

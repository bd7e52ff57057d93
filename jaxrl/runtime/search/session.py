"""``SearchSession``: the loop of a search.

Between two boundaries all slots train for one part of a training. At a boundary trials are tested, stopped or finished, new ones
begin in their slots, and the events are written.

All decisions depend on the events alone, in the order of slots, so a search that was killed and resumed makes the same ones.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointWarning, step_folders
from jaxrl.runtime.logs.run_folder import set_aside
from jaxrl.runtime.remote.errors import RemoteError, WorkerLost
from jaxrl.runtime.search.advisers import ADVISERS
from jaxrl.runtime.search.lanes.divided_lanes import open_lanes
from jaxrl.runtime.search.lanes.lanes import states_folder
from jaxrl.runtime.search.log import TrialLog, up_to
from jaxrl.runtime.search.progress import SearchProgress
from jaxrl.runtime.search.rounds import Rounds
from jaxrl.runtime.search.search_file import SearchFile
from jaxrl.runtime.search.space import hyperparams_of, structure_of
from jaxrl.runtime.search.trials import Event, Trial, Trials, asked_event, ended_event, returns_event
from jaxrl.runtime.system.warn import warn
from jaxrl.training import num_iterations
from jaxrl.types import Agent

STATES = "states"
"""Folder of the checkpoints, which hold the states of the trials that train."""
CHECKPOINT_EVERY = 60.0
"""Seconds between two checkpoints, at least."""
SHARE = 0.03
"""Largest share of the time that is spent on them."""
LOSSES = 3
"""Most times that a search resumes from its checkpoint because a process was lost."""

OpenLanes = Callable[[SearchFile, Mapping[str, Any]], Any]


def open_here(search: SearchFile, structure: Mapping[str, Any]) -> Any:
    """Open the program of a structure in this process."""
    return open_lanes(search, structure, search.options.batch, jax.local_devices())


class SearchSession:
    """A search, from its first or its last boundary to its end."""

    def __init__(
        self,
        search: SearchFile,
        folder: Path | None,
        progress: SearchProgress,
        stop: Callable[[], bool],
        open_lanes: OpenLanes = open_here,
        jobs: int = 1,
        mirror: Callable[[Trials], object] = lambda trials: None,
    ) -> None:
        """
        Args:
          stop: called at each boundary; ends the loop if it returns True.
          open_lanes: makes the program for the trials with a structure.
          jobs: number of processes that hold its slots.
          mirror: called at each boundary, to copy the trials elsewhere.
        """
        self.search, self._folder, self._progress, self._stop = search, folder, progress, stop
        self._open_lanes, self._mirror, self._losses = open_lanes, mirror, 0
        self._parts = search.options.groups or jobs
        self._rounds = Rounds(search)
        self._log = None if folder is None else TrialLog(folder)
        self._adviser = ADVISERS[search.options.method](search.space, search.options.seed)
        self.trials = Trials(search.rungs, search.options.objective)
        self._lanes: Any = None
        self._structure: dict[str, Any] = {}
        self._events: list[Event] = []
        """Events since the last boundary that was written."""
        self._compiled = 0.0
        self._saved, self._saving = time.perf_counter(), 0.0

    # ---------------------------------------------------------------------------------------------------------------- the loop

    def go(self) -> bool:
        """Search until the end. Return False if ``stop`` ended it earlier."""
        while True:
            try:
                return self._go()
            except WorkerLost as error:
                self._losses += 1
                if self._losses > LOSSES or self._folder is None:
                    raise
                self._progress.note(f"{error}; the search resumes from its last checkpoint ({self._losses} of {LOSSES})")
                self.close()

    def _go(self) -> bool:
        self._resume()
        while not self.is_over:
            if self._stop():
                self._save()
                return False
            if self.trials.boundary < 0:
                self._begin_boundary(0)
            self._begin_boundary(self._train())
        return True

    def close(self) -> None:
        """End the program and its processes."""
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None

    @property
    def is_over(self) -> bool:
        """Return whether all trials that count have ended."""
        return self.trials.boundary >= 0 and self._is_round_over() and not self.trials.running

    def _begin_boundary(self, env_steps: int) -> None:
        """Do what is due at the next boundary, and write its events. ``env_steps`` are those since the last one."""
        at = self.trials.boundary + 1
        for trial in self._test(at):
            self._decide(trial, at)
        self._end_round(at)
        self._fill(at)
        self._apply({"event": "boundary", "at": at, "env_steps": self.trials.env_steps + env_steps})
        if self._log is not None:
            self._log.append(self._events)
        self._events = []
        self._mirror(self.trials)
        self._save_if_due()
        self._progress.update(self.trials, self.compile_seconds)

    def _apply(self, event: Event) -> None:
        self._events.append(self.trials.apply(event))

    def _train(self) -> int:
        """Train all trials to the ends of their next parts, and return the number of env steps."""
        assert self._lanes is not None
        at, agent = self.trials.boundary, self._lanes.agent
        trained: int = self._lanes.train(
            {
                trial.slot: self._iterations(agent, trial.age(at) + 1) - self._iterations(agent, trial.age(at))
                for trial in self.trials.running
            }
        )
        return trained

    # --------------------------------------------------------------------------------------------------- what a boundary decides

    def _test(self, at: int) -> list[Trial]:
        """Test the trials that are at a rung, and return them."""
        rungs, options = self.trials.rungs, self.search.options
        ages = range(1, rungs.parts + 1) if options.objective == "auc" else rungs.ages
        due = [trial for trial in self.trials.running if trial.age(at) in ages]
        for is_last, episodes in ((False, options.rung_episodes), (True, options.eval_episodes)):
            group = [trial for trial in due if (trial.age(at) == rungs.parts) == is_last]
            if group:
                assert self._lanes is not None
                returns = self._lanes.test([trial.slot for trial in group], [trial.age(at) for trial in group], episodes)
                for trial, row in zip(group, returns, strict=True):
                    self._apply(returns_event(at, trial, self._rows(self._lanes.agent, trial.age(at)), row.tolist()))
        return due

    def _decide(self, trial: Trial, at: int) -> None:
        """End a trial that was just tested, or let it continue."""
        age, rungs = trial.age(at), self.trials.rungs
        if all(map(math.isnan, trial.tests[age])):
            self._apply(ended_event(at, trial, "diverged"))
        elif age == rungs.parts:
            self._apply(ended_event(at, trial, "complete"))
        elif age in rungs.ages and not self.trials.is_kept(trial, self.search.options.keep):
            self._apply(ended_event(at, trial, "stopped"))

    def _end_round(self, at: int) -> None:
        """Cut the trials that only fill lanes once those that count have ended."""
        if self._is_round_over():
            for trial in self.trials.running:
                self._apply(ended_event(at, trial, "cut"))

    def _is_round_over(self) -> bool:
        """Return whether all trials of the last round that count have ended; True if no round has begun."""
        if not (number := self.trials.rounds):
            return True
        counted = [trial for trial in self.trials.all if trial.round == number - 1][: self._rounds.size(number - 1)]
        return len(counted) == self._rounds.size(number - 1) and all(trial.end for trial in counted)

    def _fill(self, at: int) -> None:
        """Begin trials in free slots, unless all trials that count have ended. Freeze slots for which a grid has none left."""
        is_new = self._is_round_over()
        number = self.trials.rounds - (not is_new)
        free = sorted({*range(self.search.options.batch)} - {trial.slot for trial in self.trials.running})
        if not free or not self._rounds.size(number):
            return
        structure = self._rounds.structure(number) if is_new else structure_of(self.search.space, self.trials.all[-1].settings)
        settings = self._adviser.ask(self.trials, len(free), structure)
        for slot, each in zip(free, settings, strict=False):
            self._apply(asked_event(at, len(self.trials.all), number, slot, each))
        if settings:
            self._refill(at)
        if idle := free[len(settings) :]:
            self._lanes.free(idle)

    # ------------------------------------------------------------------------------------------------------ programs and states

    def _iterations(self, agent: Agent, age: int) -> int:
        """Return the iterations that a trial has trained at an age."""
        return self.trials.rungs.iterations(age, num_iterations(agent, self.search.total_steps))

    def _rows(self, agent: Agent, age: int) -> int:
        """Return the rows that each seed of a trial has trained at an age."""
        return (agent.algorithm.warmup_iterations + self._iterations(agent, age)) * agent.steps_per_iteration

    def _refill(self, at: int) -> None:
        """Begin the trials in the program that begin at this boundary."""
        new = [trial for trial in self.trials.running if trial.begun == at]
        lanes = self._open(new[0])
        hyperparams = {trial.slot: hyperparams_of(self.search.space, trial.settings) for trial in new}
        lanes.refill(hyperparams, self._rows(lanes.agent, self.trials.rungs.parts))

    def _open(self, trial: Trial) -> Any:
        """Return the program for the structure of a trial."""
        structure = structure_of(self.search.space, trial.settings)
        if self._lanes is None or structure != self._structure:
            self._compiled = self.compile_seconds
            self.close()  # frees the memory of the other program first
            self._lanes, self._structure = self._open_lanes(self.search, structure), structure
        return self._lanes

    @property
    def compile_seconds(self) -> float:
        return self._compiled + (self._lanes.compile_seconds() if self._lanes else 0.0)

    # ------------------------------------------------------------------------------------------------------------------- saving

    def _resume(self) -> None:
        """Continue from the last checkpoint, or from the log of a search that is over."""
        self._events = []
        if self._folder is None or self._log is None:
            return
        events = self._log.read()
        self.trials = self._after(events)
        if self.trials.boundary < 0 or self.trials.running:
            self._check_parts()
            events = self._restore(events)
            self._log.rewrite(events)
            self.trials = self._after(events)
        if events:
            self._progress.note(f"resumed after {len(self.trials.all)} trials")

    def _after(self, events: list[Event]) -> Trials:
        return Trials(self.search.rungs, self.search.options.objective, events)

    def _restore(self, events: list[Event]) -> list[Event]:
        """Restore the states of the last checkpoint that is intact, and return the events up to it."""
        assert self._folder is not None
        for step in self._saved_steps():
            kept = up_to(events, step)
            found = self._after(kept)
            if found.boundary != step or not found.running:  # from before the log was lost
                continue
            try:
                self._open(found.running[0]).restore(self._folder / STATES, step)
            except (CheckpointError, RemoteError) as error:
                if isinstance(error, RemoteError) and error.type_name != CheckpointError.__name__:
                    raise
                warn(f"{error}. The search resumes from an earlier one", CheckpointWarning)
                continue
            for folder in self._state_folders():  # of a checkpoint that only some parts wrote
                for newer, path in step_folders(folder):
                    if newer > step:
                        shutil.rmtree(path)
            return kept
        self._set_aside()
        return []

    def _check_parts(self) -> None:
        """Raise ValueError if the checkpoints are those of another number of processes."""
        assert self._folder is not None
        folders = [path.name.partition("-of-")[2] for path in (self._folder / STATES).glob("*-of-*")]
        others = {int(number) for number in folders if number.isdigit()} - {self._parts}
        if others and not self._saved_steps():
            before = max(others)
            how = f"with jobs={before}" if before > 1 else "without jobs"
            raise ValueError(
                f"{self._folder} holds a search that was begun {how}, and its checkpoints cannot be divided among {self._parts}: "
                f"call it {how} to resume it, or name another folder to begin again"
            )

    def _set_aside(self) -> None:
        """Keep what is there under other names, so that a search that begins again deletes nothing."""
        assert self._folder is not None and self._log is not None
        states = self._folder / STATES
        if not states.exists() and not any(trial.end for trial in self.trials.all):
            return  # killed before its first checkpoint
        kept = [set_aside(path).name for path in (self._log.path, states) if path.exists()]
        warn(
            f"no checkpoint in {states} can be used, so the search begins again. What was there is now in "
            f"{self._folder}: {', '.join(kept)}",
            CheckpointWarning,
        )

    def _saved_steps(self) -> list[int]:
        """Return the boundaries at which all parts wrote a checkpoint, the last one first."""
        written = [{step for step, _ in step_folders(folder)} for folder in self._state_folders()]
        return sorted(set.intersection(*written), reverse=True)

    def _state_folders(self) -> list[Path]:
        assert self._folder is not None
        return [states_folder(self._folder / STATES, part, self._parts) for part in range(self._parts)]

    def _save_if_due(self) -> None:
        now = time.perf_counter()
        if now - self._saved >= max(CHECKPOINT_EVERY, self._saving / SHARE) and self.trials.running:
            self._save()
            self._saved, self._saving = time.perf_counter(), time.perf_counter() - now

    def _save(self) -> None:
        """Write a checkpoint of the current boundary."""
        if self._folder is not None and self._lanes is not None and self.trials.boundary >= 0:
            step = self.trials.boundary
            if step not in self._saved_steps():
                self._lanes.save(self._folder / STATES, step)

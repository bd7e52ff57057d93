"""Trials of a search: what was asked, their scores so far, and how they ended, as a fold over the events of the log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from jaxrl.runtime.plots.statistics import METRICS, trimmed_mean
from jaxrl.runtime.search.halving import Rungs, continues

End = Literal["complete", "stopped", "diverged", "cut"]
"""How a trial ended: after a whole training; at a rung, as others were better; when all its seeds had diverged; because the
search ended."""
OBJECTIVES = {"final": "the return at the end", "auc": "the mean of the returns during training"}

Event = dict[str, Any]


class Asked(dict[str, Any]):
    """Settings of a new trial, with what its method must know of it later."""

    notes: dict[str, int]
    """Such as the number of its generation; plain numbers, for the log."""

    def __init__(self, settings: Mapping[str, Any], notes: Mapping[str, int]) -> None:
        super().__init__(settings)
        self.notes = dict(notes)


@dataclass
class Trial:
    """One choice of settings, and what training with it has shown."""

    number: int
    round: int
    """Number of its round: trials of a round have the same structure, and train in the same program."""
    slot: int
    settings: dict[str, Any]
    begun: int
    """Boundary at which it began."""
    notes: dict[str, int] = field(default_factory=dict)
    """See ``Asked``."""
    tests: dict[int, list[float]] = field(default_factory=dict)
    """Age in parts -> mean return of each seed; NaN for one that has diverged."""
    end: End | None = None
    """None while it trains."""
    ended: int | None = None
    """Boundary at which it ended."""

    def age(self, boundary: int) -> int:
        """Return its age at a boundary, in parts of a whole training."""
        return boundary - self.begun


class Trials:
    """All trials of a search, after some events."""

    def __init__(self, rungs: Rungs, objective: str, events: Iterable[Event] = ()) -> None:
        self.rungs, self._objective = rungs, objective
        self.all: list[Trial] = []
        self._known: dict[tuple[int, int], float] = {}
        """Number of a trial and age -> score, if no later test can change it."""
        self.boundary = -1
        """Last boundary whose events are complete. Between two boundaries each slot trains for one part."""
        self.env_steps = 0
        """Env steps of all trials until then."""
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> Event:
        """Apply one event, and return it."""
        if event["event"] == "boundary":
            self.boundary, self.env_steps = event["at"], event["env_steps"]
        elif event["event"] == "asked":
            assert event["trial"] == len(self.all)
            notes = event.get("notes", {})  # logs of earlier versions have none
            self.all.append(Trial(event["trial"], event["round"], event["slot"], event["settings"], event["at"], notes))
        elif event["event"] == "tested":
            self.all[event["trial"]].tests[event["age"]] = [math.nan if x is None else x for x in event["returns"]]
        elif event["event"] == "ended":
            trial = self.all[event["trial"]]
            trial.end, trial.ended = event["how"], event["at"]
        return event

    @property
    def running(self) -> list[Trial]:
        """Trials that train, in the order of their slots."""
        return sorted((trial for trial in self.all if trial.end is None), key=lambda trial: trial.slot)

    @property
    def complete(self) -> list[Trial]:
        """Trials that trained to the end, best first; equal ones in the order of asking."""
        done = [trial for trial in self.all if trial.end == "complete"]
        return sorted(done, key=lambda trial: (-np.nan_to_num(self.score(trial), nan=-np.inf), trial.number))

    def last_age(self, trial: Trial) -> int:
        """Return the age of a trial at its last test, 0 if there was none."""
        return max(trial.tests, default=0)

    def score(self, trial: Trial, age: int | None = None) -> float:
        """Return the score of a trial at an age, by default its last: the interquartile mean over seeds of the objective.

        A seed that has diverged counts as the worst return that any trial had at the same age. NaN where all have diverged.
        """
        age = self.last_age(trial) if age is None else age
        if self._objective == "final":
            return self._tested(trial, age)
        scores = [self._tested(trial, each) for each in trial.tests if each <= age]
        return float(np.mean(scores)) if scores else math.nan

    def _tested(self, trial: Trial, age: int) -> float:
        if (trial.number, age) in self._known:
            return self._known[trial.number, age]
        returns = np.asarray(trial.tests.get(age, [math.nan]))
        if has_diverged := bool(np.isnan(returns).any()):
            seen = [x for each in self.all for x in each.tests.get(age, ()) if not math.isnan(x)]
            returns = np.where(np.isnan(returns), min(seen, default=math.nan), returns)
        score = float(trimmed_mean(returns, METRICS["iqm"]))
        if not has_diverged:
            self._known[trial.number, age] = score
        return score

    def is_kept(self, trial: Trial, keep: float) -> bool:
        """Return whether a trial that was just tested at a rung continues, compared with all that ever reached this rung."""
        age = self.last_age(trial)
        reached = [each for each in self.all if age in each.tests]
        return continues(self.score(trial, age), [self.score(each, age) for each in reached], keep)

    @property
    def rounds(self) -> int:
        """Number of rounds that have begun."""
        return self.all[-1].round + 1 if self.all else 0

    def busy(self, slots: int) -> float:
        """Return the share of the slots' time in which they trained a trial."""
        parts = sum((self.boundary if trial.ended is None else trial.ended) - trial.begun for trial in self.all)
        return parts / (slots * self.boundary) if self.boundary > 0 else math.nan


def asked_event(at: int, number: int, round_number: int, slot: int, settings: Mapping[str, Any]) -> Event:
    """Return the event of a trial that begins in a slot."""
    event = {"event": "asked", "at": at, "trial": number, "round": round_number, "slot": slot, "settings": dict(settings)}
    return event | {"notes": settings.notes} if isinstance(settings, Asked) and settings.notes else event


def returns_event(at: int, trial: Trial, rows: int, returns: Sequence[float]) -> Event:
    """Return the event of a test. ``rows``: env steps that each seed has trained."""
    plain = [None if math.isnan(x) else float(x) for x in returns]
    return {"event": "tested", "at": at, "trial": trial.number, "age": trial.age(at), "rows": rows, "returns": plain}


def ended_event(at: int, trial: Trial, how: End) -> Event:
    """Return the event of the end of a trial."""
    return {"event": "ended", "at": at, "trial": trial.number, "how": how}

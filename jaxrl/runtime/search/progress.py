"""Progress of a search: a bar in a terminal, lines elsewhere, or no output."""

from __future__ import annotations

import math
import time
from typing import Any, TextIO, cast

from rich.progress import BarColumn, Progress, TextColumn

from jaxrl.runtime.console.progress import duration, number, short
from jaxrl.runtime.console.streams import Screen, screen
from jaxrl.runtime.console.tables import terminal
from jaxrl.runtime.search.trials import Trials

PAUSE = 5.0
"""Seconds between two lines, at least."""


class SearchProgress:
    """Display of the trials that have ended, the best score so far, and the time that is left."""

    def __init__(self, title: str, num_trials: int, *, quiet: bool) -> None:
        self._out, self._total = Screen(None) if quiet else screen(), num_trials
        console = None if self._out.is_gone else terminal(file=cast(TextIO, self._out))
        self._begun = self._last = time.perf_counter()
        self._before: tuple[int, int] | None = None
        """Env steps, and trials that had ended, at the first boundary of this process."""
        self._bar: Any = None
        self.note(title)
        if console is not None:
            columns = (TextColumn("trials"), BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, refresh_per_second=4)
            self._task = self._bar.add_task("compiling …", total=num_trials)
            self._bar.start()

    def note(self, text: str) -> None:
        """Show a permanent line."""
        if self._bar is not None:
            self._bar.console.print(text, soft_wrap=True, highlight=False, markup=False)
        else:
            print(text, file=self._out, flush=True)

    def update(self, trials: Trials, compile_seconds: float) -> None:
        """Show the state at a boundary."""
        done = sum(trial.end is not None for trial in trials.all[: self._total])
        text = self._in_words(trials, done, compile_seconds)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
        elif time.perf_counter() - self._last >= PAUSE or not trials.running:
            self._last = time.perf_counter()
            self.note(text)

    def _in_words(self, trials: Trials, done: int, compile_seconds: float) -> str:
        env_steps = trials.env_steps
        parts = [f"{min(done, self._total)}/{self._total} trials"]
        if trials.complete and not math.isnan(best := trials.score(trials.complete[0])):
            parts.append(f"best {number(best, abs(best))} (trial {trials.complete[0].number})")
        self._before = self._before or (env_steps, done)
        trained, ended = env_steps - self._before[0], done - self._before[1]
        elapsed = time.perf_counter() - self._begun - compile_seconds
        if trained > 0 and elapsed > 0:
            parts.append(f"{short(trained / elapsed)} env steps/s")
        parts.append(f"{short(env_steps)} env steps")
        if ended and trials.running:
            parts.append(f"ETA {duration(elapsed / ended * max(0, self._total - done))}")
        return "  ".join(parts)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

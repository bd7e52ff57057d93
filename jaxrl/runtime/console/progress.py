"""Progress of a run: a live panel in a terminal, one line per chunk elsewhere, or no output."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TextIO, cast

import numpy as np
from rich import live
from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from jaxrl.runtime.console.streams import Screen, screen
from jaxrl.runtime.console.tables import terminal
from jaxrl.runtime.logs.live_status import WorkerState
from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN, Record

SHOWN_LOSSES = 8
"""Most losses in the live panel."""
REFRESHES = 8
"""Updates of the live panel per second, at most."""
SILENCE = 60.0
"""Seconds without a line after which a line is printed within a chunk."""


class Progress(Protocol):
    """A display of a run."""

    def note(self, text: str) -> None:
        """Show a permanent line. Works after ``close`` as well."""

    def update(self, record: Record, eta: float, compile_seconds: float, workers: Sequence[WorkerState] = ()) -> None:
        """Show the record of a finished chunk. ``eta``: seconds until the end; NaN before the first chunk."""

    def compiling(self) -> None:
        """Show that the run's programs are compiled now."""

    def advance(self, rows: int, eta: float) -> None:
        """Show the rows of each seed so far, within a chunk."""

    def close(self) -> None: ...


ENV_STEPS, UPDATES = "env steps", "updates"
"""Steps of an agent that collects rows, and of one that learns from a dataset."""


def make_progress(title: str, total_steps: int, *, quiet: bool, unit: str = ENV_STEPS) -> Progress:
    """Make the display that suits the output stream. ``total_steps`` counts the steps of each seed that will actually run."""
    out = Screen(None) if quiet else screen()
    console = None if out.is_gone else terminal(file=cast(TextIO, out))
    return Lines(title, total_steps, out, unit) if console is None else Live(title, total_steps, console, unit)


class Returns:
    """Last known training return of each seed, as a chunk may end without a finished episode."""

    def __init__(self) -> None:
        self._last: Any = np.nan

    def update(self, record: Record) -> str | None:
        """Update with a chunk. Return mean ± standard deviation over seeds, or None before the first episode has ended."""
        returns = np.atleast_1d(record.get(TRAINING_RETURN, np.nan))
        returns = np.where(np.isnan(returns), self._last, returns)
        self._last = np.where(record["diverged"], np.nan, returns)
        return None if np.isnan(self._last).all() else spread({TRAINING_RETURN: self._last}, TRAINING_RETURN)


class Lines:
    """Progress as one line per chunk, for logs and pipes. Unknown values are left out."""

    def __init__(self, title: str, total_steps: int, out: Screen, unit: str = ENV_STEPS) -> None:
        self._total, self._out, self._unit = total_steps, out, unit
        self._returns = Returns()
        self._compile_seconds = 0.0
        self.note(title)

    def note(self, text: str) -> None:
        self._last = time.monotonic()
        print(text, file=self._out, flush=True)

    def compiling(self) -> None:
        self.note("compiling …")

    def advance(self, rows: int, eta: float) -> None:
        if time.monotonic() - self._last >= SILENCE:
            self.note(f"{self._steps(rows)}  ETA {duration(eta)}")

    def update(self, record: Record, eta: float, compile_seconds: float, workers: Sequence[WorkerState] = ()) -> None:
        parts = [self._steps(int(record["rows"]))]
        if (returns := self._returns.update(record)) is not None:
            parts.append(f"return {returns}")
        if known(record, EVALUATION_RETURN).size:
            parts.append(f"evaluation {spread(record, EVALUATION_RETURN)}")
        if np.isfinite(record["sps"]):
            parts += [f"{short(record['sps'])} {self._unit}/s", f"ETA {duration(eta)}"]
        if workers:
            parts.append(summarise(workers))
        if compile_seconds > self._compile_seconds:
            parts.append(f"compiled in {duration(compile_seconds - self._compile_seconds)}")
            self._compile_seconds = compile_seconds
        self.note("  ".join(parts))

    def _steps(self, rows: int) -> str:
        return f"step {rows:>{len(f'{self._total:,}')},}/{self._total:,}"

    def close(self) -> None: ...


class Live:
    """Progress as a live panel."""

    def __init__(self, title: str, total_steps: int, console: Any, unit: str = ENV_STEPS) -> None:
        self._title, self._total, self._unit = title, total_steps, unit
        self._returns, self._evaluation = Returns(), "–"
        self._below: list[Any] = []
        self._drawn = time.monotonic()
        content = self._panel(Spinner("dots", "compiling …"))
        self._live = live.Live(content, console=console, refresh_per_second=REFRESHES)
        self._live.start()

    def note(self, text: str) -> None:
        self._live.console.print(Text(text), soft_wrap=True)

    def update(self, record: Record, eta: float, compile_seconds: float, workers: Sequence[WorkerState] = ()) -> None:
        if known(record, EVALUATION_RETURN).size:
            self._evaluation = spread(record, EVALUATION_RETURN)
        self._below = [self._numbers(record, compile_seconds), *([summarise(workers)] if workers else [])]
        self._draw(int(record["rows"]), eta)

    def compiling(self) -> None: ...  # shown from the start

    def advance(self, rows: int, eta: float) -> None:
        if time.monotonic() - self._drawn >= 1 / REFRESHES:
            self._draw(rows, eta)

    def _draw(self, rows: int, eta: float) -> None:
        self._live.update(self._panel(Group(self._bar(rows, eta), *self._below)))
        self._drawn = time.monotonic()

    def close(self) -> None:
        self._live.stop()

    def _panel(self, content: Any) -> Any:
        return Panel(content, title=Text(self._title), title_align="left", border_style="blue")

    def _bar(self, steps: int, eta: float) -> Any:
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        left = Text(f"ETA {duration(eta)}", style="cyan")
        bar.add_row(ProgressBar(self._total, steps), f"{steps:,} / {self._total:,} steps per seed", left)
        return bar

    def _numbers(self, record: Record, compile_seconds: float) -> Any:
        """Make a table of names and values, two pairs per row."""
        cells = [
            ("training return", self._returns.update(record) or "–"),
            (f"{self._unit}/s", short(record["sps"])),
            ("evaluation return", self._evaluation),
            ("compile time", duration(compile_seconds or math.nan)),
        ]
        losses = [key for key in record if key.startswith("losses/")][:SHOWN_LOSSES]
        cells += [(key.removeprefix("losses/").replace("_", " "), spread(record, key)) for key in losses]
        texts = [Text(cell, style=style) for pair in cells for cell, style in zip(pair, ("dim", "bold"), strict=True)]
        table = Table.grid(padding=(0, 3))
        for start in range(0, len(texts), 4):
            table.add_row(*texts[start : start + 4])
        return table


class Displays:
    """Several displays as one."""

    def __init__(self, *displays: Progress) -> None:
        self._displays = displays

    def note(self, text: str) -> None:
        for display in self._displays:
            display.note(text)

    def update(self, record: Record, eta: float, compile_seconds: float, workers: Sequence[WorkerState] = ()) -> None:
        for display in self._displays:
            display.update(record, eta, compile_seconds, workers)

    def compiling(self) -> None:
        for display in self._displays:
            display.compiling()

    def advance(self, rows: int, eta: float) -> None:
        for display in self._displays:
            display.advance(rows, eta)

    def close(self) -> None:
        for display in self._displays:
            display.close()


@contextlib.contextmanager
def spinner(title: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr, if that is a terminal. Yields a function that takes a short status of ``title``."""
    if (console := terminal(stderr=True)) is None:
        yield lambda text: None
        return
    with console.status(Text(title)) as status:
        yield lambda text: status.update(Text(f"{title}: {text}"))


# --------------------------------------------------------------------------------------------------------------------- numbers


def summarise(workers: Sequence[WorkerState]) -> str:
    """Format the steps per second of each worker, their largest lag, and the number of restarts."""
    rates, lags, restarts, *_ = zip(*workers, strict=True)
    return f"workers {'+'.join(map(short, rates))}/s, lag {short(max(lags))}, {sum(restarts)} restarts"


def known(record: Record, key: str) -> np.ndarray:
    """Return the values that are not NaN, one per seed."""
    values = np.atleast_1d(record.get(key, np.nan))
    return values[~np.isnan(values)]


def spread(record: Record, key: str) -> str:
    """Format mean ± standard deviation over seeds."""
    values = known(record, key)
    if not len(values):
        return "–"
    mean, deviation = values.mean(), values.std()
    if len(values) == 1:
        return number(mean, mean)
    size = max(abs(mean), deviation)
    return f"{number(mean, size)} ± {number(deviation, size)}"


def number(x: float, size: float) -> str:
    """Format ``x`` with digits that suit ``size``: one decimal from 100 on, else three figures; exponents far from 1."""
    size = abs(size)
    if size and not 1e-3 <= size < 1e6:
        return f"{x:.2e}"
    decimals = 1 if size >= 100 else 2 - math.floor(math.log10(size)) if size else 0
    return f"{x:.{decimals}f}"


def short(x: float) -> str:
    """Format a large number: 652k, 1.3M."""
    if not np.isfinite(x):
        return "–"
    x = float(f"{x:.3g}")  # first, since 999.6 is 1k
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:g}{unit}"
    return f"{x:g}"


def duration(seconds: float) -> str:
    """Format a duration: 0.4 s, 12 s, 3:07 min, 2:15 h."""
    if not np.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"

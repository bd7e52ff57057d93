"""What a run shows while it works: a live panel in a terminal, a line per chunk elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TextIO, cast

import numpy as np

from jaxrl.runtime.records.record import EVALUATION_RETURN, TRAINING_RETURN, Record
from jaxrl.runtime.screen.streams import Screen, screen

SHOWN_LOSSES = 8
"""In the live panel."""


class Header(NamedTuple):
    """What does not change during a run."""

    title: str
    total_steps: int
    """Per seed, as run."""


class View(NamedTuple):
    """What changes with each chunk."""

    record: Record
    eta: float
    """Seconds; NaN before the first chunk."""
    compile_seconds: float


class Progress(Protocol):
    def note(self, text: str) -> None:
        """One line that stays; after ``close``, too."""
        ...

    def update(self, view: View) -> None:
        """A chunk is done."""
        ...

    def close(self) -> None: ...


def make_progress(header: Header, *, quiet: bool) -> Progress:
    """The display that fits where the output goes."""
    out = screen()
    if quiet or out.is_gone:
        return Silent()
    from rich.console import Console

    console = Console(file=cast(TextIO, out), highlight=False)
    return Live(header, console) if console.is_terminal and not console.is_dumb_terminal else Lines(header, out)


class Silent:
    """Nothing."""

    def note(self, text: str) -> None: ...

    def update(self, view: View) -> None: ...

    def close(self) -> None: ...


class Lines:
    """A line per chunk, for logs and pipes."""

    def __init__(self, header: Header, out: Screen) -> None:
        self._header, self._out = header, out
        self._compile_seconds = 0.0
        self.note(header.title)

    def note(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def update(self, view: View) -> None:
        record, total = view.record, self._header.total_steps
        parts = [
            f"step {int(record['rows']):>{len(f'{total:,}')},}/{total:,}",
            f"return {spread(record, TRAINING_RETURN)}",
        ]
        if known(record, EVALUATION_RETURN).size:
            parts.append(f"evaluation {spread(record, EVALUATION_RETURN)}")
        parts += [f"{short(record['sps'])} env steps/s", f"ETA {duration(view.eta)}"]
        if view.compile_seconds > self._compile_seconds:
            parts.append(f"compiled in {duration(view.compile_seconds - self._compile_seconds)}")
            self._compile_seconds = view.compile_seconds
        self.note("  ".join(parts))

    def close(self) -> None: ...


class Live:
    """A panel that redraws itself."""

    def __init__(self, header: Header, console: Any) -> None:
        from rich.live import Live as RichLive

        self._header = header
        self._evaluation = "–"
        self._live = RichLive(self._panel(None), console=console, refresh_per_second=8)
        self._live.start()

    def note(self, text: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(text), soft_wrap=True)

    def update(self, view: View) -> None:
        if known(view.record, EVALUATION_RETURN).size:
            self._evaluation = spread(view.record, EVALUATION_RETURN)
        self._live.update(self._panel(view))

    def close(self) -> None:
        self._live.stop()

    def _panel(self, view: View | None) -> Any:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        total = self._header.total_steps
        if view is None:
            return Panel(Spinner("dots", "compiling …"), title=Text(self._header.title), title_align="left", border_style="blue")
        steps = int(view.record["rows"])
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        bar.add_column(justify="right")
        bar.add_row(
            ProgressBar(total, steps), f"{steps:,} / {total:,} steps per seed", Text(f"ETA {duration(view.eta)}", style="cyan")
        )
        table = Table.grid(padding=(0, 3))
        for row in self._rows(view):
            table.add_row(*(Text(cell, style=style) for cell, style in zip(row, ("dim", "bold", "dim", "bold"), strict=True)))
        grid = Table.grid(expand=True)
        for part in (bar, table):
            grid.add_row(part)
        return Panel(grid, title=Text(self._header.title), title_align="left", border_style="blue")

    def _rows(self, view: View) -> list[tuple[str, str, str, str]]:
        record = view.record
        cells = [
            ("training return", spread(record, TRAINING_RETURN)),
            ("env steps/s", short(record["sps"])),
            ("evaluation return", self._evaluation),
            ("compile time", duration(view.compile_seconds or math.nan)),
        ]
        losses = [key for key in record if key.startswith("losses/")][:SHOWN_LOSSES]
        cells += [(key.removeprefix("losses/").replace("_", " "), spread(record, key)) for key in losses]
        cells += [("", "")] * (len(cells) % 2)
        return [(*left, *right) for left, right in zip(cells[::2], cells[1::2], strict=True)]


# --------------------------------------------------------------------------------------------------------------------- numbers


@contextlib.contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr, if that is a terminal; takes a few words on how far ``what`` is."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda text: None
        return
    with console.status(Text(what)) as status:
        yield lambda text: status.update(Text(f"{what}: {text}"))


def known(record: Record, key: str) -> np.ndarray:
    """The values of the seeds that have one; empty if none has."""
    values = np.atleast_1d(record.get(key, np.nan))
    return values[~np.isnan(values)]


def spread(record: Record, key: str) -> str:
    """Mean ± standard deviation over seeds."""
    values = known(record, key)
    if not len(values):
        return "–"
    mean, deviation = values.mean(), values.std()
    if len(values) == 1:
        return number(mean, mean)
    size = max(abs(mean), deviation)
    return f"{number(mean, size)} ± {number(deviation, size)}"


def number(x: float, size: float) -> str:
    """``x`` with as many digits as suit quantities of this size: 1 decimal from 100, else 3 figures; exponents far from 1."""
    size = abs(size)
    if size and not 1e-3 <= size < 1e6:
        return f"{x:.2e}"
    decimals = 1 if size >= 100 else 2 - math.floor(math.log10(size)) if size else 0
    return f"{x:.{decimals}f}"


def short(x: float) -> str:
    """A rate: 652k, 1.3M."""
    if not np.isfinite(x):
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.3g}{unit}"
    return f"{x:.3g}"


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3:07 min, 2:15 h."""
    if not np.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"

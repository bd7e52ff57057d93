"""Drawing of a report: as plain text, or as a renderable of rich that suits the width of a terminal."""

from __future__ import annotations

from typing import Any

from jaxrl.runtime.console.tables import plain_table
from jaxrl.runtime.status.in_words import Report, Section

BAR = 40
"""Most columns of the progress bar."""

NARROW = 70
"""Least columns of a terminal that shows ``WIDE`` columns of tables."""

WIDE = ("algorithm", "environment", "log")

STYLES = {
    **dict.fromkeys(("running", "finished"), "green"),
    **dict.fromkeys(("suspended", "silent", "stopped", "unknown"), "yellow"),
    **dict.fromkeys(("diverged", "failed", "gone"), "bold red"),
}
"""Style of a cell that begins with a state."""


def as_text(report: Report) -> str:
    """Format a report as aligned lines of any length."""
    return "\n".join([report.title, *(plain_table(*section) for section in report.sections if section.rows)])


def as_renderable(report: Report, width: int) -> Any:
    """Return a report for a rich console of this width; long texts are folded."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    bar: list[Any] = [] if report.progress is None else [ProgressBar(1.0, report.progress, width=BAR), Text()]
    parts = [part for section in report.sections if section.rows for part in (_table(_fitted(section, width)), Text())]
    return Group(Text(report.title, style="bold", overflow="fold"), *bar, *parts[:-1])


def _fitted(section: Section, width: int) -> Section:
    """Leave wide columns out of a table that has no room for them. Names of runs and the folder of logs are still shown."""
    if section.columns is None or width >= NARROW:
        return section
    kept = [index for index, heading in enumerate(section.columns) if heading not in WIDE]
    columns, *rows = (tuple(row[index] for index in kept) for row in (section.columns, *section.rows))
    return Section(columns, rows)


def _table(section: Section) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=section.columns is not None, header_style="bold")
    is_labelled = section.columns is None
    for index, heading in enumerate(section.columns or ("", "")):
        style = "dim" if is_labelled and index == 0 else ""
        # Labels and numbers are kept whole; texts, names of jobs and paths are folded.
        is_text = index == 1 if is_labelled else heading in ("job", "log", "run", "environment")
        table.add_column(heading, no_wrap=not is_text, overflow="fold", style=style)
    for row in section.rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell.partition(":")[0].partition(";")[0], "")) for cell in row))
    return table

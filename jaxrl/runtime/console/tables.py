"""Tables and help text: folded to the width of a terminal; elsewhere tables have one plain line per row, for grep and awk."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

MAX_WIDTH = 100
"""Maximum width of help text; the documentation shows help at this width."""


def terminal(**where: Any) -> Any:
    """Return a rich console, by default on stdout; None if the stream is not a terminal or rich cannot be imported."""
    try:
        from rich.console import Console
    except Exception:  # a broken rich must not prevent plain output
        return None
    console = Console(highlight=False, **where)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def show_table(
    columns: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    *,
    styles: Mapping[str, str] | None = None,
    fixed: Sequence[int] = (0,),
) -> None:
    """Print a table. ``styles`` are rich's, by the text of a cell; ``fixed`` are columns that are never folded, to copy from."""
    console = terminal()
    if console is None:
        print(plain_table(columns, rows), end="")
        return
    from rich.table import Table
    from rich.text import Text

    width = max(map(len, rows), default=0)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=columns is not None, header_style="bold")
    for index, heading in enumerate(columns or [""] * width):
        table.add_column(heading, no_wrap=index in fixed, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    console.print(table)


def plain_table(columns: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned lines of any length, with columns two spaces apart."""
    lines = [*([columns] if columns else []), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def folded(text: str) -> str:
    """Fold help to the width of the terminal, ``MAX_WIDTH`` at most.

    Consecutive lines that begin with a letter form a paragraph. An indented line with columns, as in a list, is folded under its
    last column. An indented line with one column, such as a command to copy, is kept whole, and so are frames.
    """
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    lines: list[str] = []
    for line in text.split("\n"):
        if line[:1].isalpha() and lines and lines[-1][:1].isalpha():
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(_folded_line(line, width) for line in lines)


def _folded_line(line: str, width: int) -> str:
    columns = re.match(r" +\S.* {2,}(?=\S)", line)
    indent = len(columns[0]) if columns else 0
    if not (line[:1].isalpha() or columns) or indent > width - 20:
        return line
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)

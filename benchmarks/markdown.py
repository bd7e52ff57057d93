"""Markdown tables for reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Requirement = tuple[str, str, str, bool]
"""Name, required value, measured value, and whether it is met."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns: the first one to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.ljust(widths[0]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(cells)]
        return f"| {' | '.join(padded)} |"

    divider = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(divider), *(line(row) for row in rows)])


def requirement_table(requirements: Sequence[Requirement]) -> str:
    """Return the table of what is required, and of what was measured."""
    rows = [[name, asked, found, "yes" if is_met else "NO"] for name, asked, found, is_met in requirements]
    return table(["requirement", "required", "measured", "met"], rows)


def misses(requirements: Callable[[Mapping[str, Any]], Sequence[Requirement]]) -> Callable[[Mapping[str, Any]], bool]:
    """Return the function that says whether a result misses a requirement."""

    def missed(result: Mapping[str, Any]) -> bool:
        return not all(is_met for *_, is_met in requirements(result))

    return missed


def origin(result: Mapping[str, Any]) -> str:
    """Return the lines of a report that name the command, the date, the processor and the version of jax."""
    return f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, jax {result['versions']['jax']}"

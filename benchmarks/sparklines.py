"""Learning curves as small SVG drawings, for the rows of the table of scores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks.thin import curve_key, full_history

WIDTH, HEIGHT = 100, 24
BEFORE = 4
"""Columns before that of the curves, the last of them the mean."""
HEAD = re.compile(rf"<tr>(?:\s*<th[^>]*>[^<]*</th>){{{BEFORE}}}")
ROW = re.compile(rf"<tr>\s*<td[^>]*>([\w-]+)</td>(?:\s*<td[^>]*>[^<]*</td>){{{BEFORE - 1}}}")
TABLE = re.compile(r"<table>(?:(?!</table>).)*?>commit</th>.*?</table>", re.DOTALL)


def sparkline(result: Mapping[str, Any]) -> str:
    """Draw the mean over seeds of a score's learning curve; "" if it has fewer than two points."""
    history = full_history(result["history"])
    steps, returns = history["env_steps"], history[curve_key(history)]
    if len(returns) < 2:
        return ""
    x, y = (scaled(values) for values in (steps[:, 0], np.nanmean(returns, axis=1)))
    points = " ".join(f"{WIDTH * across:.0f},{HEIGHT * (1 - up):.0f}" for across, up in zip(x, y, strict=True))
    title = f"<title>{result['name']}: {np.nanmean(returns[0]):.4g} to {np.nanmean(returns[-1]):.4g}</title>"
    box = f'viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" preserveAspectRatio="none"'
    return f'<svg class="curve" role="img" {box}>{title}<polyline points="{points}" vector-effect="non-scaling-stroke"/></svg>'


def scaled(values: np.ndarray) -> np.ndarray:
    """Return values from 0 for the smallest to 1 for the largest; zeros if all are equal."""
    return (values - values.min()) / (np.ptp(values) or 1.0)


def with_curves(content: str, results: Iterable[Mapping[str, Any]]) -> str:
    """Add a column of curves to the table of scores in a page's HTML."""
    named = {result["name"]: result for result in results}

    def row(match: re.Match[str]) -> str:
        return f"{match[0]}\n<td>{sparkline(named[match[1]])}</td>"

    def drawn(match: re.Match[str]) -> str:
        return ROW.sub(row, HEAD.sub(r"\g<0>\n<th>curve</th>", match[0], count=1))

    return TABLE.sub(drawn, content, count=1)

"""The table of scores, made from results alone. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.machine import processor
from benchmarks.markdown import table
from jaxrl.algorithms.presets import interval_text, shown

HEADER = (
    *("experiment", "steps", "seeds", "mean [95 %]", "worst seed", "required", "passed", "training, s"),
    *("algorithm", "environment", "commit", "jax", "processor"),
)
"""Columns of the table of scores."""


def score_report(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the section with the table of ``scores/*.json``."""
    return f"## Scores\n\n{score_table(results)}"


def score_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of ``scores/*.json`` and its legend."""
    rows = []
    for result in results:
        rows.append(
            [
                result["name"],
                f"{result['total_steps']:,}",
                f"{len(result['seeds'])}",
                interval_text(result["mean"], *result["interval"]),
                shown(min(result["scores"]), result["mean"]),
                result["asked"],
                "–" if result["experiment"]["threshold"] is None else "yes" if result["passed"] else "NO",
                f"{result['train_seconds']:.0f}",
                result["agent"],
                f"`{result['experiment']['env']}`",
                (result.get("commit") or "–")[:8],
                result["versions"]["jax"],
                processor({"gpu": None} | result["hardware"]),
            ]
        )
    legend = (
        "A score is the mean return of 128 greedy episodes at the end of training, unless *required* says otherwise. The "
        "interval is a bootstrap over seeds. *commit*: of the code; for scores before 28 November 2026 the newest one at their "
        "date."
    )
    further = (values_table, asked_table, opponents_table)
    return "\n\n".join([table(HEADER, rows), legend, *(part for make in further for part in make(results))])


def opponents_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of points against further opponents and its legend; nothing if no result has them."""
    rows = [
        [
            result["name"],
            name,
            f"{mean(shares):.2f}",
            f"{min(shares):.2f}",
            f"mean ≥ {result['experiment']['further_opponents'][name]:g}",
        ]
        for result in results
        for name, shares in result.get("opponents", {}).items()
    ]
    legend = "Share of the points against further opponents, of the last policies; a draw is half a point."
    return [table(["experiment", "opponent", "mean", "worst seed", "required"], rows), legend] if rows else []


def values_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of values compared with returns and its legend; nothing if no result has values."""
    rows = [
        [
            result["name"],
            *(f"{mean(result['values'][name]):.1f}" for name in ("estimated", "returned")),
            f"{result['above']:+.1%}",
        ]
        for result in results
        if "values" in result
    ]
    legend = (
        "*value*: mean of the critics' values at the first observations of the greedy episodes. *above*: by how much it exceeds "
        "their mean discounted return, as a share of the latter's size."
    )
    return [table(["experiment", "value", "discounted return", "above"], rows), legend] if rows else []


def asked_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of returns that were asked for and reached, and its legend; nothing if no result has them."""
    rows = [
        [
            result["name"],
            ", ".join(f"{x:.0f}" for x in result["asked_returns"]["asked"]),
            ", ".join(f"{mean(x):.0f}" for x in result["asked_returns"]["returned"]),
            f"{result['correlation']:.2f}",
        ]
        for result in results
        if "asked_returns" in result
    ]
    legend = "*asked*: returns that the policy was asked for at the end of training, and *returned* what it reached on average."
    return [table(["experiment", "asked", "returned", "rank correlation"], rows), legend] if rows else []

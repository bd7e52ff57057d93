"""Short tables of speed, for the README and the documentation. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import GROUPS
from benchmarks.markdown import table
from benchmarks.numbers import paired, rates, short
from benchmarks.work import as_case, rollout_shares, update_rates

MARKED = re.compile(r"(?<=<!-- speed: python -m benchmarks table -->\n\n).*?(?=\n\n<!-- /speed -->)", re.DOTALL)


def read_speed(folder: Path) -> list[dict[str, Any]]:
    """The results that are there, in the order of the groups."""
    paths = (folder / f"speed-{group}.json" for group in GROUPS)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def beside_peer(case: Mapping[str, Any]) -> list[str]:
    """A case's title, its env steps per second in jaxrl and in Rejax, and the ratio."""
    programs = case["programs"]
    ours, theirs = rates(programs["jaxrl"]), rates(programs["rejax"]) if "rejax" in programs else []
    if not theirs:
        return [case["title"], short(median(ours)), case.get("no_peer") or "–", "–"]
    return [case["title"], short(median(ours)), short(median(theirs)), f"{median(paired(ours, theirs)):.3g}"]


def readme_table(results: Iterable[Mapping[str, Any]]) -> str:
    rows = [beside_peer(case) for result in results for case in result["cases"]]
    return table(["on CartPole, or what is said", "jaxrl", "Rejax", "ratio"], rows)


def in_readme(text: str, results: Iterable[Mapping[str, Any]]) -> str:
    """The README with the table of these results between its marks.

    Raises:
      ValueError: it has no such marks, or more than once.
    """
    new, times = MARKED.subn(lambda _: readme_table(results), text)
    if times != 1:
        raise ValueError(f"the README has {times} places for the table of speed, and not one")
    return new


def page_table(results: Iterable[Mapping[str, Any]], algorithm: str) -> str:
    """An algorithm's cases: beside Rejax, and where jaxrl's time goes.

    Raises:
      ValueError: none was measured.
    """
    rows = []
    for result in results:
        for case in result["cases"]:
            if case["algorithm"] == algorithm:
                rows.append([*beside_peer(case), *_work(case, result.get("matmul_flops_per_second"))])
    if not rows:
        raise ValueError(f"no speed of {algorithm} was measured: python -m benchmarks speed")
    return table(["training", "jaxrl, env steps/s", "Rejax", "ratio", "rollouts", "products"], rows)


def _work(case: Mapping[str, Any], matmul_rate: float | None) -> list[str]:
    if "updates" not in case["programs"] or matmul_rate is None:
        return ["–", "–"]
    shares, reached = (measure(as_case(case), case["programs"]) for measure in (rollout_shares, update_rates))
    return [f"{median(shares):.0%}", f"{median(reached) / matmul_rate:.0%}"]

"""Short tables of speed, for the README and the documentation. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import GROUPS
from benchmarks.machine import processor
from benchmarks.markdown import table
from benchmarks.numbers import paired, rates, short
from benchmarks.work import as_case, rollout_shares, update_rates
from jaxrl.algorithms.presets import interval_text
from jaxrl.registry import ALGORITHMS

MARKED = re.compile(r"(?<=<!-- begin )(\w+)(: python -m benchmarks table -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
"""Place of a table in a Markdown file: from ``<!-- begin NAME: python -m benchmarks table -->`` to ``<!-- end -->``."""
README_CASES = ("ppo-1-seed", "ppo-8-seeds", "dqn-10k", "dqn-100k", "dqn-8-seeds", "sac-256", "sac-8-seeds")
"""Cases in the README's table of speed. ``docs/results.md`` has all cases."""


def read_speed(folder: Path) -> list[dict[str, Any]]:
    """Read the available results: in the order of the groups, those of a group by processor."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("speed-*.json")))
    return sorted(found, key=lambda result: [*GROUPS].index(result["group"]))


def speed_path(folder: Path, result: Mapping[str, Any]) -> Path:
    """Return the file of a result: each processor has its own."""
    return folder / f"speed-{result['group']}-{re.sub('[^a-z0-9]+', '-', processor(result['hardware']).lower())}.json"


def newest(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the last result of each group, on any processor."""
    found: dict[str, Mapping[str, Any]] = {}
    for result in results:
        if result["date"] >= found.get(result["group"], result)["date"]:
            found[result["group"]] = result
    return [*found.values()]


def beside_peer(result: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Return a case's title and processor, its env steps per second in jaxrl and in Rejax, and their ratio."""
    programs = case["programs"]
    ours, theirs = rates(programs["jaxrl"]), rates(programs["rejax"]) if "rejax" in programs else []
    peer = [short(median(theirs)), f"{median(paired(ours, theirs)):.3g}"] if theirs else [case.get("no_peer") or "–", "–"]
    return [case["title"], processor(result["hardware"]), short(median(ours)), *peer]


def peer_table(results: Iterable[Mapping[str, Any]], names: Collection[str] | None = None) -> str:
    """Return the table of speed compared with Rejax and with a plain JAX program, for the cases in ``names`` or for all."""
    rows = []
    for result, case in ((found, case) for found in results for case in found["cases"]):
        if names is None or case["name"] in names:
            plain = case["programs"].get("plain")
            ratio = f"{median(paired(rates(case['programs']['jaxrl']), rates(plain))):.3g}" if plain else "–"
            rows.append([*beside_peer(result, case), ratio])
    return table(["on CartPole unless named", "processor", "jaxrl", "Rejax", "ratio", "× plain JAX"], rows)


def algorithm_table(scores: Iterable[Mapping[str, Any]]) -> str:
    """Return a row for each algorithm of the registry, with its first score.

    Args:
      scores: Results of experiments, in their order.
    """
    first: dict[str, Mapping[str, Any]] = {}
    for measured in scores:
        first.setdefault(measured["agent"], measured)
    rows = []
    for entry in ALGORITHMS.values():
        score = "–"
        if result := first.get(entry.title):
            score = f"`{result['name']}`: {interval_text(result['mean'], *result['interval'])}"
        rows.append([f"[{entry.title}](docs/algorithms/{entry.name}.md)", entry.line, entry.takes, entry.models, score])
    header = ["algorithm", "description", "actions", "models", "first score: mean return [95 %]"]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, [":--"] * len(header), *rows))


def fill(text: str, tables: Mapping[str, str]) -> str:
    """Return a Markdown file's text with each table filled into the place that has its name.

    Raises:
      ValueError: The places do not match ``tables`` one to one.
    """
    places = [match[1] for match in MARKED.finditer(text)]
    if sorted(places) != sorted(tables):
        raise ValueError(f"the file has places for the tables {sorted(places)}, but these are the tables: {sorted(tables)}")
    return MARKED.sub(lambda match: f"{match[1]}{match[2]}{tables[match[1]]}", text)


def page_table(results: Iterable[Mapping[str, Any]], algorithm: str) -> str:
    """Return the table of an algorithm's cases: speed compared with Rejax, and the breakdown of jaxrl's time.

    Raises:
      ValueError: No case was measured.
    """
    rows = []
    for result in results:
        for case in result["cases"]:
            if case["algorithm"] == algorithm:
                rows.append([*beside_peer(result, case), *_work(case, result.get("matmul_flops_per_second"))])
    if not rows:
        raise ValueError(f"no speed of {algorithm} was measured; run python -m benchmarks speed")
    return table(["training", "processor", "jaxrl, env steps/s", "Rejax", "ratio", "rollouts", "products"], rows)


def _work(case: Mapping[str, Any], matmul_rate: float | None) -> list[str]:
    if "updates" not in case["programs"] or matmul_rate is None:
        return ["–", "–"]
    shares, reached = (measure(as_case(case), case["programs"]) for measure in (rollout_shares, update_rates))
    return [f"{median(shares):.0%}", f"{median(reached) / matmul_rate:.0%}"]

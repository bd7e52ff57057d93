"""Requirements on jaxrl's speed, and their verdicts. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.markdown import table
from benchmarks.numbers import Program, paired, rates, return_difference, with_error, with_range
from benchmarks.work import matmul_rates

Cases = Mapping[str, Mapping[str, Program]]
"""case name -> side -> measurements"""
TITLES = {"rejax": "Rejax", "plain": "plain JAX", "sbx": "SBX", "vmapped": "seeds vmapped on one device"}
"""Titles of the sides that jaxrl is compared with."""


class Claim(NamedTuple):
    """A ratio that jaxrl should reach, or not exceed."""

    text: str
    ratios: Callable[[Cases], list[float]]
    """Raises KeyError if a case, or one of its sides, was not measured."""
    limit: float
    at_least: bool = True

    def met(self, cases: Cases) -> bool:
        value = median(self.ratios(cases))
        return value >= self.limit if self.at_least else value <= self.limit


def _faster(text: str, case: str, limit: float, than: str = "rejax") -> Claim:
    return Claim(f"{text}: speed, × {TITLES[than]}", lambda c: paired(rates(c[case]["jaxrl"]), rates(c[case][than])), limit)


def _compiles(text: str, case: str, limit: float) -> tuple[Claim, Claim]:
    def cold(cases: Cases) -> list[float]:
        return paired(*(cases[case][side]["compile_seconds"] for side in ("jaxrl", "rejax")))

    def cached(cases: Cases) -> list[float]:
        return paired(*(cases[case]["jaxrl"][name] for name in ("cached_compile_seconds", "compile_seconds")))

    return (
        Claim(f"{text}: trace and compile, × Rejax", cold, limit, at_least=False),
        Claim(f"{text}: trace and compile from the cache, × cold", cached, 1 / 3, at_least=False),
    )


CLAIMS = (
    _faster("PPO, 1 seed", "ppo-1-seed", 1.6),
    _faster("PPO, 8 seeds", "ppo-8-seeds", 3.2),
    _faster("PPO, 512 environments", "ppo-512-envs", 2.5),
    _faster("PPO, 1 seed", "ppo-1-seed", 1.6, "plain"),
    _faster("PPO, 8 seeds", "ppo-8-seeds", 3.2, "plain"),
    _faster("PPO, 512 environments", "ppo-512-envs", 2.5, "plain"),
    *_compiles("PPO, 1 seed", "ppo-1-seed", 1.0),
    *_compiles("PPO, 8 seeds", "ppo-8-seeds", 1.0),
    _faster("PPO on Breakout, MLP", "breakout-mlp", 1.1),
    _faster("DQN, buffer 10k", "dqn-10k", 2.2),
    _faster("DQN, buffer 100k", "dqn-100k", 5.0),
    Claim(
        "DQN, time per step with buffer 1M, × with 10k",
        lambda c: paired(rates(c["dqn-10k"]["jaxrl"]), rates(c["dqn-1m"]["jaxrl"])),
        1.1,
        at_least=False,
    ),
    *_compiles("DQN, buffer 10k", "dqn-10k", 1.25),
    _faster("DQN, 10 environments, 8 seeds", "dqn-8-seeds", 2.5),
    _faster("SAC, 2×256", "sac-256", 1.25),
    _faster("SAC, 2×256", "sac-256", 1.3, "sbx"),
    Claim(
        "SAC, 2×256: its matrix products, × the machine's rate",
        lambda c: [rate / c["sac-256"]["machine"]["matmul_flops_per_second"] for rate in matmul_rates(c["sac-256"]["jaxrl"])],
        0.6,
    ),
    _faster("SAC, 2×64", "sac-64", 2.0),
    _faster("SAC, 2×64, 8 seeds sharded", "sac-8-seeds", 1.3, "vmapped"),
    _faster("CrossQ, critics of 2×1,024", "crossq", 1.0, "sbx"),
)

RETURNS = (
    ("PPO, 1 seed", "ppo-1-seed", "rejax"),
    ("PPO, 8 seeds", "ppo-8-seeds", "rejax"),
    ("PPO, 512 environments", "ppo-512-envs", "rejax"),
    ("PPO, 1 seed", "ppo-1-seed", "plain"),
    ("PPO, 8 seeds", "ppo-8-seeds", "plain"),
    ("PPO, 512 environments", "ppo-512-envs", "plain"),
    ("PPO on Breakout, MLP", "breakout-mlp", "rejax"),
    ("DQN, buffer 10k", "dqn-10k", "rejax"),
    ("DQN, buffer 100k", "dqn-100k", "rejax"),
    ("DQN, 10 environments, 8 seeds", "dqn-8-seeds", "rejax"),
    ("SAC, 2×256", "sac-256", "rejax"),
    ("SAC, 2×256", "sac-256", "sbx"),
    ("SAC, 2×64", "sac-64", "rejax"),
    ("SAC, 2×64, 8 seeds", "sac-8-seeds", "rejax"),
)
"""Cases whose returns are compared too, with the peer: speed counts only if the return is equal or better."""


def claim_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the requirements. Claims about cases that were not measured are left out."""
    machine = {name: result[name] for name in ("matmul_flops_per_second",) if name in result}
    cases = {case["name"]: case["programs"] | {"machine": machine} for case in result["cases"]}
    rows = []
    for claim in CLAIMS:
        try:
            ratios = claim.ratios(cases)
        except KeyError:
            continue
        asked = f"{'≥' if claim.at_least else '≤'} {claim.limit:.2f}"
        rows.append([claim.text, asked, with_range(ratios), "yes" if claim.met(cases) else "NO"])
    for text, name, side in RETURNS:
        if side in cases.get(name, ()):
            difference, error = return_difference(cases[name], side)
            met = "–" if math.isnan(error) else "yes" if difference >= -2 * error else "NO"
            rows.append([f"{text}: return − {TITLES[side]}'s", "≥ −2 s.e.", with_error(difference, error, "+"), met])
    return rows


def claim_table(rows: Sequence[Sequence[str]]) -> str:
    return table(["required of jaxrl", "limit", "measured", "met"], rows)


def missed_claims(result: Mapping[str, Any]) -> bool:
    """Return True if a requirement was not met. Shortened runs do not count."""
    return result["scale"] == 1 and any(row[-1] == "NO" for row in claim_rows(result))

"""MuJoCo at a million steps, compared with what other libraries publish; made from results alone. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import table
from benchmarks.mujoco_scores import CLEANRL, million_name
from jaxrl.algorithms.presets import interval_text

ZOO = {
    "ppo": {"HalfCheetah": (5819, 664), "Hopper": (2410, 10), "Walker2d": (3479, 822)},
    "sac": {"HalfCheetah": (9535, 100), "Hopper": (2326, 1130), "Walker2d": (3863, 254)},
    "td3": {"HalfCheetah": (9656, 970), "Hopper": (3606, 4), "Walker2d": (4718, 46)},
}
"""``benchmark.md`` of RL Zoo, mean and standard deviation of the episodes of one trained policy (MuJoCo's v3)."""
PARL = {
    "ppo": {"HalfCheetah": "4,150 (5M)", "Hopper": "1,450 (5M)", "Walker2d": "1,300 (5M)"},
    "sac": {"HalfCheetah": "8,905 (v2)", "Hopper": "3,459 (v2)", "Walker2d": "4,097 (v2)"},
    "td3": {"HalfCheetah": "7,753 (v2, 3M)", "Hopper": "3,668 (v2, 1.3M)", "Walker2d": "4,350 (3M)"},
    "ddpg": {"HalfCheetah": "10,900 (5M)", "Hopper": "900 (5M)", "Walker2d": "2,500 (5M)"},
}
"""PARL's published tables of SAC and TD3 on v2, and its published curves of v4."""
SHORTER = {"sac-mujoco-halfcheetah-1m": "sac-halfcheetah"}
"""Experiments that stand in, with fewer steps, until those with a million are trained."""
HEADER = ("algorithm", "environment", "steps", "jaxrl, mean [95 %]", "CleanRL, v4", "RL Zoo, v3", "PARL", "verdict")
LEGEND = (
    "About a million steps unless a cell says otherwise. *jaxrl*: greedy returns of 128 episodes per seed, on MuJoCo's v4 by "
    "envpool; PPO with 8 environments of 256 rows where CleanRL has one of 2,048, the others with CleanRL's settings and 4 "
    "environments, but SAC on HalfCheetah with its preset's settings. *CleanRL*: training returns, mean ± standard deviation of "
    "three seeds. *RL Zoo*: Stable-Baselines3's agents with tuned settings, greedy, mean ± standard deviation of the episodes of "
    "one run. *PARL*: its tables of v2, and otherwise where its curves of v4 end, rounded. *verdict*: whether jaxrl's mean is at "
    "least CleanRL's minus its standard deviation. Rows without a score are not trained yet."
)


def mujoco_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of an algorithm and environment each, and its legend, from ``scores/*.json``."""
    found = {result["name"]: result for result in results}
    return table(HEADER, [row(found, algorithm, env) for algorithm in CLEANRL for env in CLEANRL[algorithm]]) + f"\n\n{LEGEND}"


def row(found: Mapping[str, Mapping[str, Any]], algorithm: str, env: str) -> list[str]:
    name = million_name(algorithm, env)
    result = found.get(name) or found.get(SHORTER.get(name, ""))
    mean, deviation = CLEANRL[algorithm][env]
    ours = ["–", "–"] if result is None else [f"{result['total_steps']:,}", interval_text(result["mean"], *result["interval"])]
    verdict = "–" if result is None else "within or above" if result["mean"] >= mean - deviation else "below"
    zoo = ZOO.get(algorithm, {}).get(env)
    published = [f"{mean:,} ± {deviation:,}", "–" if zoo is None else f"{zoo[0]:,} ± {zoo[1]:,}", PARL[algorithm][env]]
    return [algorithm.upper(), env, *ours, *published, verdict]

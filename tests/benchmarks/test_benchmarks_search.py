"""The measurement of searches and populations: requirements, the report, and its processes on tiny cases."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks import search, search_side
from benchmarks.protocol import WorkerError

FOUND: dict[str, Any] = {"seconds": 100.0, "compile_seconds": 20.0, "env_steps": 8_000_000, "busy": 1.0, "trials": 128}
GOOD: dict[str, Any] = {
    "command": "c",
    "date": "d",
    "hardware": {"cpu": "a CPU"},
    "versions": {"jax": "1"},
    "budget": FOUND,
    "ask": {"seconds": [0.1, 0.5, 0.9]},
    "plain": [FOUND],
    "rungs": [FOUND | {"env_steps": 7_300_000}],
    "populations": [{"medians": [500.0] * 7 + [100.0], "sps": 95.0}],
    "agents": [{"sps": 100.0}],
}


@pytest.mark.parametrize(
    ("change", "unmet"),
    [
        ({}, []),
        ({"budget": FOUND | {"seconds": 121.0}}, ["128 trials with compilation"]),
        ({"rungs": [FOUND | {"busy": 0.9}]}, ["lanes that are busy, with rungs"]),
        ({"rungs": [FOUND | {"env_steps": 7_000_000}]}, ["env steps/s with rungs ÷ without"]),
        ({"ask": {"seconds": [0.1, 1.1, 1.2]}}, ["asking for 16 after 1,000 trials"]),
        ({"populations": [{"medians": [500.0] * 6 + [400.0, 400.0], "sps": 95.0}]}, ["populations whose median is 475"]),
        ({"agents": [{"sps": 110.0}]}, ["env steps/s of populations ÷ plain agents"]),
    ],
)
def test_requirements(change: dict[str, Any], unmet: list[str]) -> None:
    result = GOOD | change
    assert [name for name, *_, is_met in search.requirements(result) if not is_met] == unmet
    assert search.missed(result) == bool(unmet)


VERSIONS = {"rl_zoo3": "2", "ray": "3"}
PEERS: dict[str, Any] = {
    "zoo": [{"trials": 3, "seconds": 18.75, "versions": VERSIONS}],  # 576 an hour with one seed, 144 with four
    "tune": {"env_steps": 10_000, "seconds": 1.0, "versions": VERSIONS},
    "population": {"sps": 250_000.0},
}


def test_requirements_beside_peers() -> None:
    """A trial of RL Zoo has one seed, so four of them have as many env steps as one here."""
    named = {name: (measured, is_met) for name, _, measured, is_met in search.requirements(GOOD | PEERS)}
    assert named["trials per hour ÷ RL Zoo's, of equal env steps"] == ("32", True)
    assert named["env steps/s of a population ÷ Ray Tune's"] == ("25", True)
    slower = GOOD | PEERS | {"population": {"sps": 150_000.0}, "budget": FOUND | {"seconds": 110.0}}
    assert [name for name, *_, is_met in search.requirements(slower) if not is_met] == [
        "trials per hour ÷ RL Zoo's, of equal env steps",
        "env steps/s of a population ÷ Ray Tune's",
    ]
    text = search.search_report(GOOD | PEERS)
    assert "RL Zoo 2" in text and "576 trials an hour" in text and "10k env steps/s" in text


def test_the_report() -> None:
    text = search.search_report(GOOD)
    assert "4,608 trials an hour" in text and re.search(r"with rungs +\| +128 \|", text) and "100k" in text


@pytest.mark.slow
def test_tiny_cases() -> None:
    entries = search.BASE | {"total_steps": 1024, "seeds": 1, "settings": {"num_envs": 2, "rollout_length": 8}}
    entries["search"] = {"method": "random", "trials": 4, "batch": 4, "top": 0, "eval_episodes": 2}
    found = search.child("search", entries)
    assert found["trials"] == found["complete"] == 4 and found["busy"] == 1.0 and found["env_steps"] > 3000
    with pytest.raises(WorkerError, match=r"search failed: ValueError: the search: unknown"):
        search.child("search", entries | {"algorithm": "pppo"})


def test_asking_and_a_population() -> None:
    pytest.importorskip("optuna")
    assert len(search_side.measured_ask(search.search_of(16, "tpe"))["seconds"]) == 3

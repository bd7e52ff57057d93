"""The benchmark of teams: JaxMARL's scripts run unchanged, both sides do the same work, and ratios decide what is met."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import clones, jaxmarl_peer, team_side, teams
from benchmarks.peer import TEAMS, PeerError
from benchmarks.team_cases import Case, cases, from_json

TINY = Case("qmix", 2, updates=3)
FILE = """
import hydra, wandb
import jax, jax.numpy as jnp
from types import SimpleNamespace

@hydra.main(version_base=None, config_path="config")
def main(config):
    raise RuntimeError

def env_from_config(config):
    return config["ENV_NAME"], "name"

def make_train(config, env):
    assert env == "MPE_simple_spread_v3" and config["TOTAL_TIMESTEPS"] == 3 * 8 * 26
    def train(key):
        params = {"w": jax.random.normal(key, (5,))}
        return {"runner_state": (SimpleState(params), key)}
    return train

class SimpleState:
    def __init__(self, params):
        self.params = params

jax.tree_util.register_pytree_node(SimpleState, lambda x: ((x.params,), None), lambda _, x: SimpleState(*x))
"""
"""A script with the names of JaxMARL's."""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("hydra", "wandb", "qmix_rnn"):
        monkeypatch.setitem(sys.modules, name, None)  # the end of the test restores what was there
    monkeypatch.delitem(sys.modules, "qmix_rnn")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(jaxmarl_peer.initializers, "orthogonal", jaxmarl_peer.initializers.orthogonal)
    (tmp_path / "baselines/QLearning").mkdir(parents=True)
    (tmp_path / "baselines/QLearning/qmix_rnn.py").write_text(FILE)
    digests = {"QLearning/qmix_rnn.py": hashlib.sha256(FILE.encode()).hexdigest()}
    monkeypatch.setattr(jaxmarl_peer, "JAXMARL", clones.JAXMARL._replace(digests=digests))
    monkeypatch.setattr(jaxmarl_peer, "version", lambda name: "0.2.0")
    return tmp_path


def test_cases() -> None:
    found = cases(("ippo", "qmix"))
    assert [case.title for case in found] == ["IPPO, 1 seed", "IPPO, 8 seeds", "QMIX, 1 seed", "QMIX, 8 seeds"]
    assert all(from_json(json.loads(json.dumps(case._asdict()))) == case for case in found)
    assert {case.algorithm for case in found} == jaxmarl_peer.SCRIPTS.keys() == jaxmarl_peer.SETTINGS.keys()
    assert {case.num_seeds for case in found} <= teams.ASKED.keys() and TINY.length == 3 != cases(("qmix",))[0].length


def test_the_peers_trainings(clone: Path) -> None:
    side = jaxmarl_peer.Side(TINY, clone)
    compiled = side.compile()
    assert compiled["parameters"] == 5 and compiled["versions"]["scripts"] == "c793d09"
    before = np.asarray(side.key)
    section = side.train(2)
    assert section["env_steps"] == 2 * 3 * 8 * 26 * 2 and section["seconds"] > 0
    assert not np.array_equal(before, side.key)  # each training draws other numbers
    kernel = jaxmarl_peer.initializers.orthogonal(2.0)(jax.random.key(0), (64, 256))
    assert float(kernel.std()) == pytest.approx(2 / 8, rel=0.05)  # normal, of the same scale


def test_a_clone_is_of_one_commit(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"ippo_ff_mpe.py does not exist. --jaxmarl takes a clone: git clone .* checkout c793d09"):
        clones.JAXMARL.files_of(tmp_path)
    assert f"jax=={jax.__version__}" in TEAMS.requirements(gpu=False)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ippo", "qmix"])
def test_our_side(algorithm: str) -> None:
    """An iteration of QMIX has one update, as in JaxMARL; IPPO's network has the size of its."""
    side = team_side.Side(Case(algorithm, 2, updates=2))
    parameters = side.compile()["parameters"]
    assert side.train(1)["env_steps"] == round(2 * side.agent.steps_per_iteration * 2 * 25 / 26)
    config = side.agent.algorithm.update.args[0].config if algorithm == "ippo" else side.agent.algorithm.learn.args[0].config
    if algorithm == "ippo":
        assert parameters == (18 + 1) * 64 * 2 + 65 * 64 * 2 + 65 * 5 + 65
        assert (config.num_epochs, config.num_minibatches) == (4, 4)
    else:
        assert config.updates_per_iteration == 1 and side.agent.steps_per_iteration == 8 * 26


def program(*steps_per_second: float) -> dict[str, Any]:
    sections = [{"seconds": 2.0, "env_steps": 2 * x} for x in steps_per_second]
    return {"sections": sections, "compile_seconds": 3.0, "parameters": 1047, "versions": {"jax": "0.10.2"}}


def test_results() -> None:
    def result(ours: float, peer: str | None = "c793d09", scale: float = 1.0) -> dict[str, Any]:
        programs = {"jaxrl": program(ours, ours)} | ({"JaxMARL": program(100.0, 100.0)} if peer else {})
        found = [{"case": case._asdict(), "title": case.title, "programs": programs} for case in cases(("ippo",))]
        about = {"command": "python -m benchmarks teams", "date": "2026", "hardware": {"cpu": "CPU", "cores": 2}, "load": 0.1}
        return {**about, "scale": scale, "peer": peer, "cases": found}

    assert not teams.missed(result(200.0)) and teams.missed(result(150.0))
    text = teams.teams_report(result(150.0))
    assert "| steps/s of JaxMARL's: IPPO, 1 seed | ≥ 1.3× | 1.50× | yes |" in text.replace("  ", " ").replace("  ", " ")
    assert "≥ 2× " in text and "NO" in text
    alone = teams.teams_report(result(150.0, None, 0.5))
    assert "JaxMARL was not measured" in alone and "these are not speeds" in alone and "requirement" not in alone

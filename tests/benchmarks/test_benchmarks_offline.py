"""The benchmark of offline learning: both sides learn from the same rows, sections take turns, and ratios decide what is met."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import clones, corl_peer, offline, offline_side, turns
from benchmarks.__main__ import main
from benchmarks.offline_cases import ACTION, BUILDERS, OBSERVATION, Case, cases, from_json, random_rows
from benchmarks.peer import CORL, Peer, PeerError

TINY = Case("iql", (8, 8), 2, batch_size=16, rows=2_050)
FILE = """
import d4rl, gym, sys, wandb
from types import SimpleNamespace
from typing import Any, NamedTuple
import jax, jax.numpy as jnp

ARGUMENTS = sys.argv[1:]

class Transition(NamedTuple):
    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    dones: Any
    dones_float: Any

class IQLConfig(SimpleNamespace):
    n_jitted_updates = 3
    def __hash__(self):
        return hash(repr(self))

@jax.tree_util.register_pytree_node_class
class Network:
    def __init__(self, params, function):
        self.params, self.function = params, function
    def tree_flatten(self):
        return (self.params,), self.function
    @classmethod
    def tree_unflatten(cls, function, children):
        return cls(*children, function)

class State(NamedTuple):
    actor: Any
    critic: Any
    value: Any
    number: int = 0

def create_iql_train_state(key, observation, action, config):
    sizes = *config.hidden_dims, len(observation), len(action)
    weights = jax.random.normal(key, (sum(sizes),))
    return State(*(Network({"w": weights, "scale": 1.0}, lambda x: x) for _ in range(3)))

class IQL:
    @classmethod
    def update_n_times(self, state, data, key, config):
        for _ in range(config.n_jitted_updates):
            params = {**state.actor.params, "w": state.actor.params["w"] + data.rewards[0]}
            state = state._replace(actor=Network(params, state.actor.function), number=state.number + 1)
        return state, {}
"""
"""A file with the names of JAX-CORL's, whose update adds the first reward to the policy's parameters."""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*corl_peer.UNUSED, "iql"):
        monkeypatch.setitem(sys.modules, name, None)  # the end of the test restores what was there
    monkeypatch.delitem(sys.modules, "iql")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["offline", "a=1"])
    (tmp_path / "algos").mkdir()
    (tmp_path / "algos/iql.py").write_text(FILE)
    ours = clones.JAX_CORL._replace(digests={"iql.py": hashlib.sha256(FILE.encode()).hexdigest()})
    for module in (clones, corl_peer):
        monkeypatch.setattr(module, "JAX_CORL", ours)
    monkeypatch.setattr(corl_peer, "version", lambda name: "0.1")
    return tmp_path


# ----------------------------------------------------------------------------------------------------------------------- cases


def test_cases() -> None:
    found = cases(("iql", "td3bc"))
    assert [case.title for case in found[:3]] == ["IQL, 2×64, 1 seed", "IQL, 2×256, 1 seed", "IQL, 2×64, 8 seeds"]
    assert {case.batch_size for case in found} == {256} and len(found) == 6
    assert all(from_json(json.loads(json.dumps(case._asdict()))) == case for case in found)
    assert BUILDERS.keys() == offline_side.SETTINGS.keys() == offline_side.CRITICS.keys() == corl_peer.NAMES.keys()
    assert {case.num_seeds for case in found} <= offline.ASKED.keys()


def test_both_sides_learn_from_the_same_rows(clone: Path) -> None:
    rows, drawn = offline_side.make_data(TINY.rows).rows(), random_rows(TINY.rows)
    origins, valid = np.flatnonzero(rows.valid), np.asarray(rows.valid)
    np.testing.assert_array_equal(np.asarray(rows.obs)[origins], drawn.obs)
    np.testing.assert_array_equal(np.asarray(rows.obs)[origins + 1], drawn.next_obs)
    np.testing.assert_array_equal(np.asarray(rows.action)[origins], drawn.action)
    np.testing.assert_array_equal(np.asarray(rows.reward)[origins], drawn.reward)
    assert np.flatnonzero(~valid).tolist() == [1_000, 2_001, 2_052] and not np.asarray(rows.terminated).any()
    theirs = corl_peer.Side(TINY, clone, vmapped=False).data
    for name, x in (("observations", drawn.obs), ("next_observations", drawn.next_obs), ("dones_float", drawn.terminated)):
        np.testing.assert_array_equal(getattr(theirs, name), x)


# ------------------------------------------------------------------------------------------------------------------------ peer


def test_a_clone_is_of_one_commit(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clones.JAX_CORL.files_of(clone) == clone / "algos"
    with pytest.raises(
        PeerError, match=r"no-such/algos/iql.py does not exist. .*git clone https://.* git -C \S+ checkout d747dd8"
    ):
        clones.JAX_CORL.files_of(clone / "no-such")
    (clone / "algos/iql.py").write_text(FILE + "\n")
    with pytest.raises(PeerError, match=r"iql.py is not that of commit d747dd8"):
        clones.JAX_CORL.files_of(clone)


def test_the_peer_has_our_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = CORL.requirements(gpu=False)
    assert f"jax=={jax.__version__}" in needed and not [x for x in needed if x.split("==")[0] in corl_peer.UNUSED]


@pytest.mark.parametrize("vmapped", [False, True])
def test_the_peers_seeds(clone: Path, vmapped: bool) -> None:
    side = corl_peer.Side(TINY, clone, vmapped)
    module = sys.modules["iql"]
    assert module.ARGUMENTS == [] and module.config is side.config
    assert (side.config.hidden_dims, side.config.batch_size, side.config.layer_norm) == ((8, 8), 16, False)

    def policies() -> np.ndarray:
        found = [np.asarray(state.actor.params["w"]) for state in side.states]
        return np.concatenate([x if vmapped else x[None] for x in found])

    before = policies()
    assert before.shape == (2, 8 + 8 + OBSERVATION + ACTION) and not np.allclose(before[0], before[1])
    compiled = side.compile()  # calls it once, too
    assert compiled["parameters"] == 3 * before.shape[1] and compiled["versions"]["JAX-CORL"] == "d747dd8"
    section = side.train(4)
    assert section["updates"] == 4 * 3 * 2 and section["seconds"] > 0
    np.testing.assert_allclose(policies(), before + 15 * random_rows(TINY.rows).reward[0], rtol=1e-5, atol=1e-5)
    assert side.update._cache_size() == 1
    assert {int(np.max(state.number)) for state in side.states} == {15}


# ------------------------------------------------------------------------------------------------------------------------ ours


@pytest.mark.slow
@pytest.mark.parametrize("algorithm, parameters", [("iql", 1047), ("td3bc", 880), ("cql", 870)])
def test_our_side(algorithm: str, parameters: int) -> None:
    """The numbers of parameters are those of JAX-CORL's networks with these sizes."""
    side = offline_side.Side(TINY._replace(algorithm=algorithm))
    assert side.compile()["parameters"] == parameters
    assert side.train(2)["updates"] == 2 * 100 * 2
    assert np.asarray(side.states.learner.version).tolist() == [3, 3]
    memory = side.memory()
    padding = memory["all"]["held"] - memory["one"]["held"] - memory["state"]
    assert 0 <= padding < 256 and memory["parameters"] < memory["state"] < 5 * memory["parameters"]
    assert memory["one"]["held"] >= memory["data"] + memory["state"]
    assert memory["data"] > TINY.rows * 4 * (OBSERVATION + ACTION + 1)


# -------------------------------------------------------------------------------------------------------------------- sections


class FakeWorker:
    """A worker with a fixed number of seconds per call."""

    def __init__(self, name: str, seconds: float, log: list[tuple[str, int]]) -> None:
        self.name, self.seconds, self.log = name, seconds, log

    def ask(self, op: str, calls: int) -> dict[str, Any]:
        self.log.append((self.name, calls))
        return {"seconds": self.seconds * calls, "updates": 8 * calls}


@pytest.mark.parametrize(("each", "calls"), [(0.001, 1_000), (0.03, 33), (5.0, 1)])
def test_sections_are_as_long_as_asked(each: float, calls: int) -> None:
    assert turns.calls_in(FakeWorker("a", each, []), 1.0) == calls


def test_sections_take_turns() -> None:
    log: list[tuple[str, int]] = []
    workers = {"jaxrl": FakeWorker("jaxrl", 0.5, log), "JAX-CORL": FakeWorker("JAX-CORL", 0.25, log)}
    programs: dict[str, dict[str, Any]] = {side: {} for side in workers}
    turns.time_in_turns("case", workers, programs, 2, 1.0, "updates")
    assert log[-4:] == [("jaxrl", 2), ("JAX-CORL", 4)] * 2
    assert turns.rates(programs["jaxrl"], "updates") == [16.0, 16.0]
    assert turns.rates(programs["JAX-CORL"], "updates") == [32.0, 32.0]


def test_sides() -> None:
    one, clone = TINY._replace(num_seeds=1), Path("corl")
    assert offline.sides_of(one, clone) == ["jaxrl", "JAX-CORL"]
    assert offline.sides_of(TINY, clone) == ["jaxrl", "JAX-CORL", "JAX-CORL, vmapped"]
    assert offline.sides_of(TINY, None) == ["jaxrl"]
    assert offline.command_of("JAX-CORL, vmapped", TINY, clone)[-2:] == ["corl", "vmapped"]
    assert offline.command_of("JAX-CORL", TINY, clone)[0] == str(CORL.python)


# --------------------------------------------------------------------------------------------------------------------- results


def program(*updates_per_second: float) -> dict[str, Any]:
    sections = [{"seconds": 2.0, "updates": 2 * x} for x in updates_per_second]
    return {"sections": sections, "compile_seconds": 3.0, "parameters": 1047, "versions": {"jax": "0.10.2"}}


def measured(seeds: int = 8, more: int = 80_000) -> dict[str, Any]:
    programs = {"jaxrl": program(300, 320, 310), "JAX-CORL": program(100, 100, 100)}
    if seeds > 1:
        programs["JAX-CORL, vmapped"] = program(150, 100, 155)
    one = {"held": 1_000_000, "temporary": 50_000}
    memory = {"one": one, "all": {"held": 1_000_000 + more, "temporary": 400_000}, "data": 900_000, "state": 10_000}
    case = TINY._replace(num_seeds=seeds)
    return {"case": case._asdict(), "title": case.title, "programs": programs, "memory": memory if seeds > 1 else None}


def result_of(*found: dict[str, Any], peer: str | None = "d747dd8", scale: float = 1.0) -> dict[str, Any]:
    about = {"command": "python -m benchmarks offline", "date": "2026", "hardware": {"cpu": "CPU", "cores": 2}, "load": 0.1}
    return {**about, "scale": scale, "peer": peer, "cases": list(found)}


def test_the_faster_peer_counts() -> None:
    assert turns.ratios(measured()["programs"], "updates") == [2.0, 3.2, 2.0]
    assert turns.ratios(measured(1)["programs"], "updates") == [3.0, 3.2, 3.1]
    alone = measured()
    del alone["programs"]["JAX-CORL"], alone["programs"]["JAX-CORL, vmapped"]
    assert turns.ratios(alone["programs"], "updates") is None


def test_what_was_missed_is_said() -> None:
    met = result_of(measured(1), measured(8))
    assert not offline.missed(met) and "NO" not in offline.offline_report(met)
    slow = measured(8)
    slow["programs"]["JAX-CORL, vmapped"] = program(160, 160, 160)
    for missed in (slow, measured(8, more=80_001)):
        report = offline.offline_report(result_of(measured(1), missed))
        assert offline.missed(result_of(missed)) and report.count(" NO |") == 1
    report = offline.offline_report(result_of(measured(8), peer=None, scale=0.1))
    assert "not measured (`--jax-corl`)" in report and "shortened to 0.1" in report


def test_the_command_writes_each_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def measure_case(case: Case, repeats: int, seconds: float, clone: Path | None) -> dict[str, Any]:
        asked.append((case.title, repeats, seconds, clone))
        return measured(case.num_seeds)

    monkeypatch.setattr(offline, "measure_case", measure_case)
    monkeypatch.setattr(Peer, "install", lambda self: pytest.fail("installed"))
    args = ["offline", "--only", "td3bc", "--repeats", "2", "--scale", "0.1", "--out", str(tmp_path)]
    assert main(args) == 0 and [title for title, *_ in asked] == [case.title for case in cases(("td3bc",))]
    _, repeats, seconds, clone = asked[0]
    assert (repeats, clone) == (2, None) and seconds == pytest.approx(0.3)
    result = json.loads((tmp_path / "offline.json").read_text())
    assert (result["peer"], len(result["cases"])) == (None, 3)
    assert "## Offline learning" in capsys.readouterr().out and "## Offline learning" in (tmp_path / "TABLES.md").read_text()
    assert main([*args, "--jax-corl", str(tmp_path / "clone")]) == 2
    assert "git clone" in capsys.readouterr().err and len(asked) == 3

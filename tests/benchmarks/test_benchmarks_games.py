"""The benchmarks of games: moves in solved positions, games with other players, and self-play beside pgx's example."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from benchmarks import clones, connect_four, pgx_peer, self_play, self_play_side
from benchmarks.connect_four import PLANNER, Judged, make_judge, network_alone, with_simulations
from benchmarks.experiments import EXPERIMENTS
from benchmarks.peer import SELF_PLAY, PeerError
from benchmarks.score_report import opponents_table
from benchmarks.scores import run_experiment
from benchmarks.self_play_cases import GAMES, MOVES, SIMULATIONS, TITLES, Case, from_json
from jaxrl.runtime.arena.entrants import Entrant, entrant_of
from tests.helpers.oracles.connect_four import positions

ABOUT: dict[str, Any] = {
    "command": "c",
    "date": "2026-01-01",
    "hardware": {"cpu": "a CPU", "cores": 2},
    "versions": {"jax": "1", "mctx": "2"},
}
TINY = connect_four.Case(
    settings={
        "num_envs": 8,
        "rollout_length": 16,
        "simulations": 2,
        "batch_size": 128,
        "learning_starts": 0,
        "model": {"encoder": "flat", "hidden_sizes": (4,)},
    },
    total_steps=128 * connect_four.STAGES,
    simulations=2,
    further_simulations=4,
    games=4,
    num_positions=20,
)

# ---------------------------------------------------------------------------------------------------------------- Connect Four


def choosing(columns: np.ndarray) -> Entrant:
    """Return a player that plays the given column in each position."""
    return Entrant(lambda policy, carry, inputs, env_state, game, key: (carry, columns[game]))


def test_moves_are_judged_by_the_solved_positions() -> None:
    known, judge = positions(), make_judge(50)
    perfect, bad = known.perfect[:50].argmax(1), known.good[:50].argmin(1)
    assert judge(choosing(perfect)) == Judged(1.0, 1.0)
    share = known.good[:50].all(1).mean()  # positions in which no move is bad
    found = judge(choosing(bad))
    assert found.good == pytest.approx(share) and found.perfect <= share < 1


def result_of(good: float, wins: int, seconds: float) -> dict[str, Any]:
    """Return a result of two seeds: good moves 0.02 around a mean, and wins, one draw and losses in ten games."""
    table = [[[0, x], [10 - x, 0]] for x in (wins, 1, 9 - wins)]
    names = ["trained", PLANNER]
    ratings = {"ratings": [100.0, 0.0], "intervals": [[0, 0], [0, 0]]}
    games = {"names": names, "wins": table[0], "draws": [[0, 1], [1, 0]], "losses": table[2], **ratings}
    moves = {"random": [[0.5, 0.2]], "trained": [[good - 0.02, 0.75], [good + 0.02, 0.75]]}
    curve = [{"rows": 100, "moves": [[0.6, 0.3], [0.7, 0.4]]}, {"rows": 200, "moves": moves["trained"]}]
    case = connect_four.Case()._asdict()
    return {**ABOUT, "case": case, "train_seconds": seconds, "moves": moves, "curve": curve, "games": [games, games]}


@pytest.mark.parametrize(
    ("good", "wins", "seconds", "unmet"),
    [
        (0.95, 9, 600.0, []),
        (0.93, 9, 600.0, ["good moves"]),
        (0.95, 8, 600.0, [f"points against {PLANNER}"]),
        (0.95, 9, 2_760.0, ["minutes of training, all seeds"]),
    ],
)
def test_requirements_of_connect_four(good: float, wins: int, seconds: float, unmet: list[str]) -> None:
    result = result_of(good, wins, seconds)
    assert connect_four.points(result["games"][0], "trained", PLANNER) == (wins + 0.5) / 10
    assert [name for name, *_, is_met in connect_four.requirements(result) if not is_met] == unmet
    assert connect_four.missed(result) is bool(unmet)
    report = connect_four.connect_four_report(result)
    assert f"{good - 0.02:.3f}, {good + 0.02:.3f}" in report and "trained, after 100 rows" in report
    assert "after 200 rows" not in report and ("NO" in report) is bool(unmet)


@pytest.mark.slow
def test_a_tiny_connect_four(tmp_path: Path) -> None:
    result = connect_four.measure(tmp_path / "out", tmp_path / "work", TINY, quiet=True)
    assert json.loads((tmp_path / "out/connect_four.json").read_text()) == json.loads(json.dumps(result))
    assert [each["rows"] for each in result["curve"]] == [128 * (i + 1) for i in range(connect_four.STAGES)]
    assert all(len(found) == (TINY.num_seeds if name[:7] == "trained" else 1) for name, found in result["moves"].items())
    assert result["moves"]["trained"] == result["curve"][-1]["moves"] and not (tmp_path / "work").exists()
    for games in result["games"]:
        played = np.array(games["wins"]) + games["draws"] + games["losses"]
        assert (played + TINY.games * np.eye(4) == TINY.games).all()
    assert "requirement" in connect_four.connect_four_report(result)


@pytest.mark.slow
def test_searches_of_all_sizes_have_the_same_states() -> None:
    agent, more = with_simulations(TINY, 2), with_simulations(TINY, 5)
    state = more.init(jax.random.key(0))
    assert jax.tree.structure(state) == jax.tree.structure(agent.init(jax.random.key(0)))
    judge = make_judge(5)
    alone, game = judge(network_alone(agent, state)), jaxrl.make_env(connect_four.GAME)
    assert alone == judge(network_alone(more, state)) != judge(entrant_of(game, "x", (more, state)))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------- scores


def test_an_experiment_asks_for_points_against_each_opponent() -> None:
    experiment = EXPERIMENTS["ppo-tictactoe"]
    assert experiment.asked == "mean ≥ 0.98 of the games against random not lost"
    assert experiment.passes([0.97, 1.0], opponents={"one_ply": [0.5, 0.8]})
    assert not experiment.passes([0.97, 1.0], opponents={"one_ply": [0.5, 0.6]}) and not experiment.passes([0.97, 1.0])
    assert not experiment.passes([0.97, 0.98], opponents={"one_ply": [0.7, 0.8]})
    result = {"name": "x", "opponents": {"one_ply": [0.5, 0.8]}, "experiment": {"further_opponents": {"one_ply": 0.6}}}
    table, legend = opponents_table([{"name": "y"}, result])
    assert (
        "| x          |  one_ply | 0.65 |       0.50 | mean ≥ 0.6 |" in table and "draw" in legend and opponents_table([]) == []
    )


@pytest.mark.slow
def test_a_tiny_score_of_self_play(tmp_path: Path) -> None:
    settings = {"num_envs": 8, "rollout_length": 8, "model": {"encoder": "flat", "hidden_sizes": (4,)}}
    experiment = EXPERIMENTS["ppo-tictactoe"]._replace(name="tiny", settings=settings, total_steps=128, num_seeds=2, episodes=64)
    result = run_experiment(experiment, tmp_path, tmp_path / "work", quiet=True)
    assert len(result["scores"]) == len(result["opponents"]["one_ply"]) == 2
    assert result["mean"] > np.mean(result["opponents"]["one_ply"]) > 0  # draws with random play count in full, and it wins less
    assert result["self_play"] != result["scores"]


# ------------------------------------------------------------------------------------------------------------------- self-play


EXAMPLE = """
import sys
from types import SimpleNamespace
import jax, jax.numpy as jnp
import pgx, wandb
from network import AZNet

assert sys.argv[1:] == ["env_id=connect_four", "selfplay_batch_size=128", "num_simulations=32", "max_num_steps=32"]
assert pgx.make_baseline_model("connect_four_v0") is None
env = SimpleNamespace(init=lambda key: SimpleNamespace(observation=jnp.zeros((6, 7, 2), bool)))
forward = SimpleNamespace(init=lambda key, board: ({"w": jnp.zeros(AZNet.size)}, {}))
selfplay = jax.pmap(lambda model, key: SimpleOutput(jnp.zeros((32, 128 // jax.local_device_count()))))

class SimpleOutput:
    def __init__(self, reward):
        self.reward = reward

jax.tree_util.register_pytree_node(SimpleOutput, lambda x: ((x.reward,), None), lambda _, x: SimpleOutput(*x))
"""
"""An example with the names of pgx's."""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import pgx

    for name in ("wandb", "network", "train"):
        monkeypatch.setitem(sys.modules, name, None)  # the end of the test restores what was there
    monkeypatch.delitem(sys.modules, "train")
    for where, name in ((sys, "path"), (sys, "argv")):
        monkeypatch.setattr(where, name, [*getattr(where, name)])
    monkeypatch.setattr(pgx, "make_baseline_model", None)
    folder = tmp_path / "examples/alphazero"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(EXAMPLE)
    digests = {"train.py": hashlib.sha256(EXAMPLE.encode()).hexdigest()}
    monkeypatch.setattr(pgx_peer, "PGX", clones.PGX._replace(digests=digests))
    monkeypatch.setattr(pgx_peer, "make_network", lambda network: type("Network", (), {"size": len(network)}))
    return tmp_path


def test_the_examples_self_play(clone: Path) -> None:
    side = pgx_peer.Side(Case("mlp"), clone)
    compiled = side.compile()
    assert compiled["parameters"] == 3 and compiled["versions"]["example"] == "079b2d7"
    section = side.train(2)
    assert section["moves"] == 2 * GAMES * MOVES and section["seconds"] > 0


def test_a_clone_of_pgx_is_of_one_commit(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"train.py does not exist. --pgx takes a clone: git clone .*sotetsuk/pgx .* 079b2d7"):
        clones.PGX.files_of(tmp_path)
    assert f"jax=={jax.__version__}" in SELF_PLAY.requirements(gpu=False)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "parameters"), [("mlp", 89_608), ("convolution", 166_216)])
def test_our_self_play(network: str, parameters: int) -> None:
    """An iteration has one update, the search is the example's, and rows in which games begin anew do not count."""
    side = self_play_side.Side(Case(network))
    assert side.compile()["parameters"] == parameters
    moves = side.train(1)["moves"]
    assert 0.85 * GAMES * MOVES < moves < GAMES * MOVES
    config = side.agent.algorithm.learn.args[0].config  # type: ignore[attr-defined]
    assert config.updates_per_iteration == 1 and config.simulations == SIMULATIONS
    assert (config.search.considered, config.search.value_scale, config.search.visit_offset) == (16, 0.1, 50.0)


def program(*moves_per_second: float) -> dict[str, Any]:
    sections = [{"seconds": 2.0, "moves": 2 * x} for x in moves_per_second]
    return {"sections": sections, "compile_seconds": 3.0, "parameters": 89_608, "versions": {"jax": "0.10.2"}}


def test_results_of_self_play() -> None:
    """A ratio to each of the peer's two ways is required."""

    def result(ours: float, peer: str | None = "079b2d7") -> dict[str, Any]:
        others = {self_play.PEER: program(100.0, 100.0), self_play.SHARED: program(200.0, 200.0)} if peer else {}
        cases = [Case(name) for name in TITLES]
        programs = {"jaxrl": program(ours, ours)} | others
        found = [{"case": case._asdict(), "title": case.title, "programs": programs} for case in cases]
        return {**ABOUT, "load": 0.1, "scale": 1.0, "peer": peer, "cases": found}

    assert all(from_json(json.loads(json.dumps(Case(name)._asdict()))) == Case(name) for name in TITLES)
    assert not self_play.missed(result(250.0)) and self_play.missed(result(230.0))
    text = self_play.self_play_report(result(230.0))
    assert "1.15×" in text and "2.30×" in text and "NO" in text and "a device per core" in text
    alone = self_play.self_play_report(result(230.0, None))
    assert "pgx's example was not measured (`--pgx`)" in alone and "requirement" not in alone

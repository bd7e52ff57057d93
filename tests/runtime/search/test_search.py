"""Sessions of searches: slots that are filled again, resuming, devices, grids and divergence."""

from __future__ import annotations

import itertools
import math
import types
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest

from jaxrl.runtime.remote.errors import RemoteError
from jaxrl.runtime.search.lanes.lanes import Lanes, build
from jaxrl.runtime.search.log import TRIALS, TrialLog
from jaxrl.runtime.search.progress import SearchProgress
from jaxrl.runtime.search.search import search
from jaxrl.runtime.search.search_file import read_search
from jaxrl.runtime.search.session import STATES, SearchSession
from jaxrl.runtime.search.trials import Trials
from jaxrl.training import evaluate_pure, evaluation_key
from tests.helpers.searches import SEARCH, open_session, with_options


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SearchSession:
    """A search on one device that was not interrupted."""
    session = open_session(read_search(SEARCH), tmp_path_factory.mktemp("whole") / "search")
    assert session.go()
    return session


def events_of(session: SearchSession) -> list[dict[str, Any]]:
    return TrialLog(session._folder).read()  # type: ignore[arg-type]


def test_slots_are_always_full(whole: SearchSession) -> None:
    trials = whole.trials
    assert trials.busy(4) == 1.0 and not trials.running
    counted = trials.all[:12]
    assert {trial.end for trial in counted} <= {"complete", "stopped"} and {"complete", "stopped"} == {t.end for t in counted}
    assert all(trial.end is not None for trial in trials.all) and len(trials.all) > 12
    slots = {slot: sorted((t.begun, t.ended) for t in trials.all if t.slot == slot) for slot in range(4)}
    for spans in slots.values():  # one after another, without a gap
        assert spans[0][0] == 0 and spans[-1][1] == trials.boundary
        assert all(earlier[1] == later[0] for earlier, later in itertools.pairwise(spans))


def test_only_the_best_at_a_rung_continued(whole: SearchSession) -> None:
    """Replay the log and compare each decision with a plain rule."""
    reached: dict[int, list[float]] = {}
    worst = math.inf
    trials = Trials(whole.trials.rungs, "final")
    events = events_of(whole)
    for i, event in enumerate(events):
        trials.apply(event)
        if event["event"] == "tested":
            score = float(np.mean(event["returns"]))
            reached.setdefault(event["age"], []).append(score)
            worst = min(worst, score)
        if event["event"] == "ended" and event["how"] == "stopped":
            trial = trials.all[event["trial"]]
            age, same = max(trial.tests), reached[max(trial.tests)]
            better = sum(x > np.mean(trial.tests[age]) for x in same)
            assert len(same) >= 8 and better >= math.ceil(0.33 * len(same)), events[i]
    rows = {event["age"]: event["rows"] for event in events if event["event"] == "tested"}
    assert rows == {1: 128, 2: 256, 4: 512}


def test_a_trial_in_a_slot_equals_the_same_trial_alone() -> None:
    """Also in a slot that had another trial before. More iterations would amplify the differences of rounding."""
    read = read_search(SEARCH)
    agent = build(read, {})
    lanes = Lanes(agent, 4, read.seeds, ["learning_rate", "gamma"], jax.devices()[:1])
    lanes.refill({slot: {"learning_rate": 0.01, "gamma": 0.99} for slot in range(4)}, 512)
    lanes.train(dict.fromkeys(range(4), 3))
    lanes.refill({2: {"learning_rate": 0.003, "gamma": 0.9}}, 512)
    lanes.train(dict.fromkeys(range(4), 1))
    assert lanes.states.iteration.tolist() == [4, 4, 4, 4, 1, 1, 4, 4]
    returns = lanes.test([2], [7], 8)
    for lane, seed in ((4, 3), (5, 5)):
        alone, _ = jax.jit(agent.step)(
            agent.init(jax.random.key(seed), {"learning_rate": 0.003, "gamma": 0.9, "total_steps": 512})
        )
        there = jax.tree.map(lambda x, lane=lane: x[lane], lanes.states)
        chex.assert_trees_all_close(plain_keys(there), plain_keys(alone), rtol=1e-4, atol=1e-5)
        played = evaluate_pure(agent, agent.algorithm.policy(alone.learner), evaluation_key(seed, 7), 8)
        assert returns[0, lane - 4] == pytest.approx(float(played.episodic_return.mean()), rel=1e-3)


def test_slots_train_different_numbers_of_iterations() -> None:
    """Bit for bit what they train alone, and a slot without a number stays as it is."""
    read = read_search(SEARCH)
    lanes = Lanes(build(read, {}), 3, read.seeds, ["learning_rate", "gamma"], jax.devices()[:1])
    trials = {slot: {"learning_rate": 0.01, "gamma": 0.99} for slot in range(3)}
    lanes.refill(trials, 512)
    assert lanes.train({0: 3, 1: 2}) == 5 * 2 * 16
    assert lanes.states.iteration.tolist() == [3, 3, 2, 2, 0, 0] and lanes.alive.all()
    assert lanes.train({1: 1, 2: 3}) == 4 * 2 * 16 and lanes.train({}) == 0
    leaves = jax.tree.leaves(jax.device_get(plain_keys(lanes.states.learner)))
    assert all(np.array_equal(x[:2], x[2:4], equal_nan=True) and np.array_equal(x[:2], x[4:], equal_nan=True) for x in leaves)


def test_a_trial_trains_for_the_whole_length_and_no_longer(tmp_path: Path) -> None:
    """34 iterations are not a multiple of 10 parts; a search that is stopped in the middle finds the same."""
    entries = with_options(rungs=[0.3, 1.0], trials=10) | {"total_steps": 530}
    session = open_session(read_search(entries), tmp_path / "whole")
    assert session.go()
    rows = {event["age"]: event["rows"] for event in events_of(session) if event["event"] == "tested"}
    assert rows == {3: 16 * 10, 10: 16 * 34}
    assert not open_session(read_search(entries), tmp_path / "parts", stop_at=13).go()
    resumed = open_session(read_search(entries), tmp_path / "parts")
    assert resumed.go() and events_of(resumed) == events_of(session)


def test_a_training_that_is_too_short_for_its_rungs_is_one_line(tmp_path: Path) -> None:
    entries = with_options(rungs=[0.33, 1.0])
    with pytest.raises(
        ValueError, match=r"trials with these settings: the rungs divide a training into 100 parts, .* only 32 it"
    ):
        search(entries, out=tmp_path / "search", quiet=True)
    assert not (tmp_path / "search").exists()


def plain_keys(tree: Any) -> Any:
    """Replace typed PRNG keys by their data."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


@pytest.mark.parametrize("every", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_search_that_was_stopped_resumes_bit_for_bit(whole: SearchSession, tmp_path: Path, every: int) -> None:
    folder, wanted = tmp_path / "search", events_of(whole)
    for stop_at in (0, 2, 5):
        session = open_session(read_search(SEARCH), folder, stop_at=stop_at, every=every)
        assert not session.go()
        log = folder / TRIALS
        log.write_bytes(log.read_bytes() + b'{"event": "asked", "at": 99, "tri')  # killed while it wrote
    session = open_session(read_search(SEARCH), folder, every=every)
    assert session.go() and TrialLog(folder).read() == wanted
    assert session.trials.env_steps == whole.trials.env_steps


@pytest.mark.slow
def test_the_time_that_is_left_is_that_of_trials_since_the_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 of 100 trials ended before, and 10 in the 20 seconds since."""
    clock = iter([0.0, 0.0, 20.0])
    monkeypatch.setattr("jaxrl.runtime.search.progress.time.perf_counter", lambda: next(clock))
    progress = SearchProgress("", 100, quiet=True)

    def shown(ended: int) -> str:
        trials = types.SimpleNamespace(env_steps=1000 * ended, complete=[], running=[1])
        return progress._in_words(trials, ended, 0.0)  # type: ignore[arg-type]

    assert "ETA" not in shown(50)
    assert "60/100 trials  500 env steps/s" in (text := shown(60)) and text.endswith("ETA 1:20 min")


def test_a_search_whose_states_are_lost_begins_again(whole: SearchSession, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    assert not open_session(read_search(SEARCH), folder, stop_at=4).go()
    for step in (folder / STATES / "0-of-1").iterdir():
        (step / "manifest.json").unlink()
    before = (folder / TRIALS).read_bytes()
    with pytest.warns(UserWarning) as warned:
        session = open_session(read_search(SEARCH), folder)
        assert session.go()
    said = [str(each.message) for each in warned]
    assert any("resumes from an earlier one" in each for each in said)
    assert any("the search begins again. What was there is now in" in each for each in said)
    assert TrialLog(folder).read() == events_of(whole)
    assert (folder / "trials.before.jsonl").read_bytes() == before and (folder / "states.before" / "0-of-1").is_dir()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_a_damaged_checkpoint_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other errors, such as a lack of memory, end the call and leave everything as it is."""
    folder = tmp_path / "search"
    assert not open_session(read_search(SEARCH), folder, stop_at=2).go()
    before = files_in(folder)

    def refuse(*_: Any) -> None:
        raise RemoteError("LanesWorker 0.do raised MemoryError: 3 GB", "MemoryError", "3 GB")

    monkeypatch.setattr(Lanes, "restore", refuse)
    with pytest.raises(RemoteError, match="MemoryError"):
        open_session(read_search(SEARCH), folder).go()
    assert files_in(folder) == before


@pytest.mark.parametrize(("jobs", "begun"), [(1, "without jobs"), (4, "with jobs=4")])
def test_another_number_of_jobs_is_refused(jobs: int, begun: str, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    assert not open_session(read_search(SEARCH), folder, stop_at=2).go()
    (folder / STATES / "0-of-1").rename(folder / STATES / f"0-of-{jobs}")
    before = files_in(folder)
    session = SearchSession(read_search(SEARCH), folder, SearchProgress("", 1, quiet=True), lambda: True, jobs=2)
    with pytest.raises(ValueError, match=f"was begun {begun}, and its checkpoints cannot be divided among 2: call it {begun}"):
        session.go()
    assert files_in(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 4])
def test_two_devices_make_the_same_search(groups: int) -> None:
    """Bit for bit, although XLA rounds functions such as tanh differently in vectors of other lengths."""
    read = read_search(with_options(groups=groups))
    one, two = open_session(read), open_session(read, devices=2)
    assert one.go() and two.go()
    assert two.trials.all == one.trials.all and two.trials.env_steps == one.trials.env_steps


@pytest.mark.slow
def test_structure_is_chosen_for_a_round(tmp_path: Path) -> None:
    entries = with_options(trials=16, rungs=[1.0], batch=2) | {"total_steps": 64}
    entries["space"] = {**SEARCH["space"], "rollout_length": [4, 8]}
    entries["settings"] = {name: value for name, value in SEARCH["settings"].items() if name != "rollout_length"}
    session = open_session(read_search(entries), tmp_path / "search", stop_at=None)
    assert session.go()
    by_round: dict[int, set[int]] = {}
    for trial in session.trials.all:
        by_round.setdefault(trial.round, set()).add(trial.settings["rollout_length"])
    assert [len(lengths) for lengths in by_round.values()] == [1] * len(by_round) and len(by_round) >= 4
    assert by_round[0] | by_round[1] == {4, 8}  # each is tried first
    assert len(session.trials.all) == 16


GRID = {name: SEARCH[name] for name in ("algorithm", "env", "total_steps", "seeds")} | {
    "settings": {name: value for name, value in SEARCH["settings"].items() if name != "model"},
    "space": {
        "learning_rate": [1e-3, 1e-2, 3e-2],
        "gamma": [0.9, 0.99],
        "model": [{"hidden_sizes": (8,)}, {"hidden_sizes": (4,)}],
    },
    "search": {"method": "grid", "batch": 4, "eval_episodes": 8, "top": 0},
}


@pytest.mark.slow
def test_a_grid_tries_all_combinations_once(tmp_path: Path) -> None:
    """Also when it is resumed, and with rungs. Slots without a trial train nothing."""
    wanted = [*itertools.product([[8], [4]], [1e-3, 1e-2, 3e-2], [0.9, 0.99])]
    whole = open_session(read_search(GRID))
    assert whole.go()

    def tried(session: SearchSession) -> list[Any]:
        return [
            (t.settings["model"]["hidden_sizes"], t.settings["learning_rate"], t.settings["gamma"]) for t in session.trials.all
        ]

    assert tried(whole) == wanted and {trial.end for trial in whole.trials.all} == {"complete"}
    assert [trial.slot for trial in whole.trials.all] == [0, 1, 2, 3, 0, 1] * 2 and whole.trials.busy(4) == 0.75
    assert 0.98 < whole.trials.env_steps / (12 * 2 * 512) <= 1  # rows between two episodes do not count
    halved = GRID | {"search": GRID["search"] | {"rungs": [0.5, 1.0]}}
    assert not open_session(read_search(halved), tmp_path / "search", stop_at=2).go()
    session = open_session(read_search(halved), tmp_path / "search")
    assert session.go() and tried(session) == wanted
    assert {trial.end for trial in session.trials.all} == {"complete", "stopped"}
    parts = sum(trial.ended - trial.begun for trial in session.trials.all if trial.ended)
    assert 0.98 < session.trials.env_steps / (parts * 2 * 256) <= 1


def test_a_grid_is_checked() -> None:
    assert read_search(GRID | {"search": {"method": "grid"}}).options.trials == 12
    assert read_search(GRID | {"search": {"method": "grid"}}).options.batch == 6  # combinations of one structure
    for options, batch in (({"groups": 4}, 4), ({"groups": 2}, 6), ({"groups": 2, "batch": 4}, 4)):
        assert read_search(GRID | {"search": {"method": "grid", **options}}).options.batch == batch
    with pytest.raises(ValueError, match=r"groups = 8 must be at most 6, the number of this grid's trials with one structure"):
        read_search(GRID | {"search": {"method": "grid", "groups": 8}})
    with pytest.raises(ValueError, match=r"batch = 10 must be a multiple of groups = 4"):
        read_search(GRID | {"search": {"method": "grid", "groups": 4, "batch": 10}})
    with pytest.raises(ValueError, match=r"the trials of a grid are all combinations: leave out trials"):
        read_search(GRID | {"search": {"method": "grid", "trials": 8}})
    with pytest.raises(ValueError, match=r"a grid needs lists of values, and learning_rate is a range"):
        read_search(GRID | {"space": {"learning_rate": {"low": 1e-3, "high": 1e-2}}})


def test_auc_is_the_mean_over_the_training() -> None:
    session = open_session(read_search(with_options(objective="auc", rungs=[1.0], trials=4)))
    assert session.go()
    trial = session.trials.all[0]
    assert sorted(trial.tests) == [*range(1, 11)]
    assert session.trials.score(trial) == pytest.approx(np.mean([*trial.tests.values()]))


def test_trials_that_diverge_end_early_and_count_as_worst() -> None:
    entries = with_options(trials=8)
    entries["space"] = {"learning_rate": [1e-3, 1e38]}
    session = open_session(read_search(entries))
    assert session.go()
    ends = {trial.end for trial in session.trials.all if trial.settings["learning_rate"] > 1}
    assert "diverged" in ends and ends <= {"diverged", "cut"}
    assert session.trials.score(session.trials.complete[0]) > -2000


def test_a_search_in_which_all_diverge_is_one_line() -> None:
    entries = with_options(trials=4)
    entries["space"] = {"learning_rate": [1e38]}
    with pytest.raises(ValueError, match=r"all \d+ trials diverged: narrow the ranges in \[space\]"):
        search(entries, quiet=True)

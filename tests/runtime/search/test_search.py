"""Searches that train: slots that are filled again, resuming, devices, divergence, the comparison, files and the command line."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import signal
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.cli.preset_file import named_preset
from jaxrl.runtime.search.lanes.divided_lanes import open_lanes
from jaxrl.runtime.search.lanes.lanes import Lanes, build
from jaxrl.runtime.search.lanes.remote_lanes import Jobs, open_remote_lanes
from jaxrl.runtime.search.log import BEST, MANIFEST, TRIALS, TrialLog
from jaxrl.runtime.search.progress import SearchProgress
from jaxrl.runtime.search.results import comparison as comparison_module
from jaxrl.runtime.search.results.comparison import Compared, Comparison, Interval, compare
from jaxrl.runtime.search.results.report import PICTURE, RESULTS, in_toml
from jaxrl.runtime.search.search import search
from jaxrl.runtime.search.search_file import SearchFile, read_search
from jaxrl.runtime.search.session import STATES, SearchSession
from jaxrl.runtime.search.trials import Trials
from jaxrl.training import evaluate_pure, evaluation_key

SEARCH: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "Pendulum-v1",
    "total_steps": 512,
    "seeds": [3, 5],
    "settings": {"num_envs": 2, "rollout_length": 8, "num_epochs": 1, "num_minibatches": 1, "model": {"hidden_sizes": [8]}},
    "space": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}, "gamma": [0.9, 0.99]},
    "search": {"method": "random", "trials": 12, "batch": 4, "rungs": [0.25, 0.5, 1.0], "eval_episodes": 8, "top": 0},
}


def with_options(**options: Any) -> dict[str, Any]:
    return SEARCH | {"search": SEARCH["search"] | options}


def open_session(
    read: SearchFile, folder: Path | None = None, devices: int = 1, stop_at: int | None = None, every: int = 1
) -> SearchSession:
    """Return a session that writes a checkpoint at each ``every``-th boundary, and stops at one."""
    progress = SearchProgress("", 1, quiet=True)

    def open_on_devices(read: SearchFile, structure: Any) -> Any:
        return open_lanes(read, structure, read.options.batch, jax.devices()[:devices])

    session = SearchSession(
        read, folder, progress, lambda: stop_at is not None and session.trials.boundary >= stop_at, open_on_devices
    )
    if folder is not None:
        folder.mkdir(exist_ok=True)

    def save_sometimes() -> None:
        if session.trials.boundary % every == 0 and session.trials.running:
            session._save()

    session._save_if_due = save_sometimes  # type: ignore[method-assign]
    return session


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
    lanes.train(3)
    lanes.refill({2: {"learning_rate": 0.003, "gamma": 0.9}}, 512)
    lanes.train(1)
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
def test_a_search_whose_states_are_lost_begins_again(whole: SearchSession, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    assert not open_session(read_search(SEARCH), folder, stop_at=4).go()
    for step in (folder / STATES / "0-of-1").iterdir():
        (step / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="resumes from an earlier one"):
        session = open_session(read_search(SEARCH), folder)
        assert session.go()
    assert TrialLog(folder).read() == events_of(whole)


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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of a whole search with a comparison."""
    folder = tmp_path_factory.mktemp("finished") / "search"
    return folder, search(with_options(top=2, test_seeds=3), out=folder, quiet=True)


def test_candidates_of_a_structure_train_together_up_to_a_number_of_lanes() -> None:
    wide, narrow = {"model": {"hidden_sizes": [64]}}, {"model": {"hidden_sizes": [8]}}
    structures = [wide, narrow, wide, wide]
    assert comparison_module._runs(structures, 16) == [[0, 2], [3], [1]]
    assert comparison_module._runs(structures, 100) == [[0], [2], [3], [1]]
    assert comparison_module._runs(structures, 4) == [[0, 2, 3], [1]]


@pytest.mark.slow
def test_the_best_are_compared_on_other_seeds(finished: tuple[Path, Any]) -> None:
    folder, result = finished
    comparison = result.comparison
    assert len(comparison.best) == 2 and comparison.default.trial is None and comparison.default.returns.shape == (3,)
    assert comparison.best[0].tested.iqm >= comparison.best[1].tested.iqm
    assert result.settings == SEARCH["settings"] | result.trials.all[comparison.best[0].trial].settings
    config = json.loads((folder / "comparison" / "0" / "config.json").read_text())
    assert config["run"]["seeds"] == [6, 7, 8] * 3
    defaults = jaxrl.make_ppo(SEARCH["env"], **SEARCH["settings"]).hyperparams
    assert config["run"]["hyperparams"]["learning_rate"][:3] == pytest.approx([defaults.learning_rate] * 3)


def test_its_status(finished: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder, result = finished
    assert main(["status", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "search of ppo · Pendulum-v1" in said and f"{len(result.trials.all)} have begun" in said
    assert main(["status", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["state"]) == ("search", "finished") and found["ended"] == found["trials"]
    assert found["best_trial"] == result.trials.complete[0].number
    assert found["best_score"] == result.trials.score(result.trials.complete[0])


def test_a_repeated_call_reports_the_same(finished: tuple[Path, Any]) -> None:
    folder, result = finished
    before = {name: (folder / name).read_bytes() for name in (TRIALS, RESULTS, BEST, PICTURE)}
    again = search(with_options(top=2, test_seeds=3), out=folder, quiet=True)
    assert again.settings == result.settings and again.score == result.score
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_files_of_results(finished: tuple[Path, Any]) -> None:
    folder, result = finished
    with (folder / RESULTS).open() as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == len(result.trials.all) + 1 and rows[-1]["trial"] == "default"
    assert rows[0]["end"] == "complete" and float(rows[0]["score"]) == pytest.approx(
        result.trials.score(result.trials.complete[0]), rel=1e-6
    )
    best = tomllib.loads((folder / BEST).read_text())
    assert best["settings"] == result.settings and best["algorithm"] == "ppo"
    preset = named_preset(str(folder / BEST), "ppo")
    assert preset.env == SEARCH["env"] and preset.settings == result.settings and preset.num_seeds == 2
    with pytest.raises(ValueError, match="is for ppo: use jaxrl train ppo --preset"):
        named_preset(str(folder / BEST), "dqn")


def test_values_in_toml() -> None:
    values = {"a": 1, "b": 0.1, "c": True, "d": "x\ny", "e": [1, 2], "f": {"g": [0.5], "h.i": "j"}, "k": {}}
    assert tomllib.loads("\n".join(f"{name} = {in_toml(value)}" for name, value in values.items())) == values


def test_a_mistake_leaves_no_folder_behind(tmp_path: Path) -> None:
    """So that the corrected file may use it."""
    with pytest.raises(ValueError, match="CartPol-v1"):
        search(dict(SEARCH) | {"env": "CartPol-v1"}, out=tmp_path / "search", quiet=True)
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"total_steps": 300}, r"holds another search: total_steps is 512 there and 300 here"),
        ({"seeds": 3}, "holds another search: seeds is"),
    ],
)
def test_a_changed_search_is_refused(finished: tuple[Path, Any], change: dict[str, Any], text: str) -> None:
    with pytest.raises(FileExistsError, match=text):
        search(with_options(top=2, test_seeds=3) | change, out=finished[0], quiet=True)


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty, and holds no search"):
        search(SEARCH, out=tmp_path, quiet=True)


def test_two_searches_in_one_folder(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / MANIFEST).write_text(json.dumps({"search": SEARCH}))
    with open(tmp_path / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FileExistsError, match="is in use by another process"):
            search(SEARCH, out=tmp_path, quiet=True)


BUILDS: dict[str, tuple[dict[str, Any], str]] = {
    "structure": (
        {"space": {"num_minibatches": [1, 3], "gamma": [0.9]}, "settings": {"num_envs": 2, "rollout_length": 8}},
        r"trials with num_minibatches = 3 cannot be built: num_minibatches=3 must divide",
    ),
    "host": ({"env": "gymnasium:CartPole-v1"}, "a search needs a pure environment, but .* runs on the host"),
    "data": ({"algorithm": "bc", "settings": {}, "space": {"learning_rate": [0.1]}}, "cannot be searched"),
}


@pytest.mark.parametrize("case", BUILDS)
def test_what_cannot_be_built_is_one_line(case: str) -> None:
    change, text = BUILDS[case]
    with pytest.raises((TypeError, ValueError), match=text):
        search(SEARCH | change, quiet=True)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(
        'algorithm = "ppo"\nenv = "jaxrl:BitFlip"\ntotal_steps = 64\nseeds = 1\n[settings]\nnum_envs = 2\nrollout_length = 8\n'
        '[space]\nlearning_rate = { low = 1e-4, high = 1e-2, log = true }\n[search]\nmethod = "sobol"\ntrials = 2\nbatch = 2\n'
        "top = 0\n"
    )
    assert main(["search", "tiny.toml"]) == 0
    said = capsys.readouterr()
    assert "sobol search of ppo on jaxrl:BitFlip: 2 trials × 1 seeds" in said.out and "2/2 trials" in said.out
    assert "train with the best settings: jaxrl train ppo --preset runs/tiny/best.toml" in said.out
    assert main(["search", "tini.toml"]) == 2
    assert "there is no search file 'tini.toml'" in capsys.readouterr().err


def test_intervals_and_the_sentence() -> None:
    assert all(map(math.isnan, Interval.of([math.nan])))
    good = Compared(1, {}, Interval.of([9.0]), np.array([8.0, 9.0, 10.0, math.nan]))
    bad = Compared(None, {}, None, np.array([1.0, 2.0, 9.0]))
    comparison = Comparison([good], bad)
    assert comparison.improvement == pytest.approx((2 + 2.5 + 3) / 9) and not comparison.is_better
    assert comparison.in_words().endswith("probability of improvement 83%: no better than the default settings")
    clear = Comparison([good], bad._replace(returns=np.array([1.0, 2.0])))
    assert clear.is_better and clear.in_words().endswith("probability of improvement 100%")


@pytest.mark.slow
def test_processes_share_the_slots(tmp_path: Path) -> None:
    """A search in two processes finds what one finds, also if one of them is killed, or begun by one process and ended by two."""
    entries = with_options(groups=2)
    one = search(entries, out=tmp_path / "one", quiet=True)
    assert search(entries, out=tmp_path / "two", jobs=2, quiet=True).trials.all == one.trials.all
    assert {path.name for path in (tmp_path / "two" / "logs").iterdir()} == {"lanesworker-0.log", "lanesworker-1.log"}
    assert not open_session(read_search(entries), tmp_path / "begun", stop_at=4).go()
    (tmp_path / "begun" / MANIFEST).write_bytes((tmp_path / "one" / MANIFEST).read_bytes())
    assert search(entries, out=tmp_path / "begun", jobs=2, quiet=True).trials.all == one.trials.all
    notes = list[str]()
    read, jobs, folder = read_search(entries), Jobs(2), tmp_path / "killed"
    folder.mkdir()
    with jobs.open(folder / "logs", notes.append) as cluster:
        progress = SearchProgress("", 1, quiet=True)
        progress.note = notes.append  # type: ignore[method-assign]
        session = SearchSession(read, folder, progress, lambda: False, partial(open_remote_lanes, cluster, jobs), jobs.number)
        train, killed = session._train, list[int]()

        def train_and_kill() -> int:
            if session.trials.boundary == 3 and not killed:
                session._save()
            if session.trials.boundary == 4 and not killed:
                killed.append(session._lanes.parts[0].worker._queue.worker.child.process.pid)
                os.kill(killed[0], signal.SIGKILL)
            return train()

        session._train = train_and_kill  # type: ignore[method-assign]
        assert session.go() and killed
        session.close()
    assert session.trials.all == one.trials.all
    assert any("the search resumes from its last checkpoint (1 of 3)" in note for note in notes)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"jobs": 3}, "batch = 4 must be a multiple of jobs=3"),
        ({"jobs": 2}, "jobs need a folder that they share: give out"),
        ({"engine": "ray"}, "are for a number of jobs"),
        ({"jobs": 0}, "jobs=0 must be an integer >= 1"),
    ],
)
def test_wrong_jobs_are_one_line(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        search(SEARCH, quiet=True, **keywords)


def test_groups_that_processes_cannot_share_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"groups = 2 must be a multiple of jobs=4, which share them evenly"):
        search(with_options(groups=2), out=tmp_path, jobs=4, quiet=True)
    with pytest.raises(ValueError, match=r"batch = 4 must be a multiple of groups = 3"):
        read_search(with_options(groups=3))


@pytest.mark.slow
def test_trials_are_copied_to_optuna(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path / 'copy.db'}"
    result = search(SEARCH, out=tmp_path / "search", storage=storage, quiet=True)
    search(SEARCH, out=tmp_path / "search", storage=storage, quiet=True)  # nothing is copied twice
    copied = optuna.load_study(storage=storage, study_name="search").trials
    assert [trial.user_attrs["trial"] for trial in copied] == [*{t.user_attrs["trial"]: 0 for t in copied}]
    assert {trial.user_attrs["trial"] for trial in copied} == {trial.number for trial in result.trials.all}
    by_number = {trial.user_attrs["trial"]: trial for trial in copied}
    for trial in result.trials.complete:
        assert by_number[trial.number].value == result.trials.score(trial)
    with pytest.raises(ValueError, match=r"storage='sqlite:////nowhere/x\.db' cannot be opened"):
        search(SEARCH, storage="sqlite:////nowhere/x.db", quiet=True)


def test_a_diverged_seed_does_not_flatter_its_settings(finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    result = finished[1]
    rows = np.array([[-900.0, -800.0, -700.0], [-100.0, math.nan, math.nan], [-500.0, -400.0, -300.0]])
    monkeypatch.setattr(comparison_module, "_train", lambda *_, **__: rows)
    found = compare(read_search(with_options(top=2, test_seeds=3)), result.trials, None, quiet=True)
    assert found is not None and [each.returns.tolist() for each in found.best] == [[-500, -400, -300], [-100, -900, -900]]

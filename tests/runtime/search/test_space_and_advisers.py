"""Search spaces, rungs, the log's fold, and advisers: what a search decides, without training."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.runtime.search.advisers import ADVISERS
from jaxrl.runtime.search.halving import LEAST_RESULTS, Rungs, continues
from jaxrl.runtime.search.lanes.lanes import build
from jaxrl.runtime.search.log import TRIALS, TrialLog, up_to
from jaxrl.runtime.search.search_file import read_search
from jaxrl.runtime.search.space import all_structures, read_space, structure_of
from jaxrl.runtime.search.trials import Trials, asked_event, ended_event, returns_event
from jaxrl.settings.space import Dimension

SPACE = read_space(
    "space",
    "ppo",
    {
        "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
        "gamma": {"low": 0.9, "high": 0.9999, "log": "complement"},
        "ent_coef": [0.0, 0.01],
        "num_epochs": [1, 2, 4],
        "surrogate.eps": {"low": 0.1, "high": 0.3},
    },
)


def test_a_space_knows_what_is_structure() -> None:
    assert [d.name for d in SPACE if d.is_structure] == ["num_epochs"]
    assert [d.hyperparam for d in SPACE] == ["learning_rate", "gamma", "ent_coef", None, "clip_eps"]
    assert all_structures(SPACE) == [{"num_epochs": n} for n in (1, 2, 4)]
    assert all_structures(SPACE[:2]) == [{}]


@pytest.mark.parametrize(("log", "middle"), [(False, 0.505), (True, 0.1), ("complement", 1 - math.sqrt(0.99 * 0.01))])
def test_the_middle_of_a_range(log: Any, middle: float) -> None:
    d = Dimension("x", 0.01 if log is not False else 0.02, 1.0 if log is True else 0.99, log)
    assert d.at(0.5) == pytest.approx(middle) and d.at(0.0) == pytest.approx(d.low) and d.at(1 - 1e-12) == pytest.approx(d.high)


@given(st.floats(0, 1, exclude_max=True), st.sampled_from([False, True, "complement"]))
@settings(deadline=None)
def test_places_on_the_line_are_inverted(place: float, log: Any) -> None:
    d = Dimension("x", 0.9, 0.9999, log)
    value = d.at(place)
    assert d.low <= value <= d.high
    assert d.from_line(d.to_line(value)) == pytest.approx(value, rel=1e-9)


def test_choices_are_equally_likely() -> None:
    d = Dimension("x", choices=("a", "b", "c"))
    assert [d.at(place) for place in (0.0, 0.3, 0.34, 0.66, 0.67, 0.999)] == ["a", "a", "b", "b", "c", "c"]


BASE: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "CartPole-v1",
    "total_steps": 1000,
    "space": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "entry": ({"sead": 1}, r"'sead' is unknown\. Did you mean 'seeds'\?"),
    "algorithm": ({"algorithm": "pppo"}, r"unknown algorithm 'pppo'\. Did you mean 'ppo'\?"),
    "no space": ({"space": {}}, "must have a setting"),
    "name": ({"space": {"learning_rat": [1]}}, r"\[space\]: 'learning_rat' is unknown\. Did you mean 'learning_rate'\?"),
    "no range": ({"space": {"gamma": 0.9}}, "gamma = 0.9 must be a list of values, or a range"),
    "no high": ({"space": {"gamma": {"low": 0.1}}}, "gamma lacks high"),
    "key": ({"space": {"gamma": {"low": 0.1, "high": 0.2, "lag": True}}}, r"gamma: 'lag' is unknown\. Did you mean 'log'\?"),
    "order": ({"space": {"gamma": {"low": 0.3, "high": 0.2}}}, r"low=0\.3, which must be below high=0\.2"),
    "outside": ({"space": {"gamma": {"low": 0.5, "high": 1.5}}}, r"gamma=1\.5 is not allowed: it must be a number in \[0, 1\]"),
    "log of 0": ({"space": {"learning_rate": {"low": 0, "high": 1, "log": True}}}, "low=0, which has no logarithm"),
    "log of 1": ({"space": {"gamma": {"low": 0, "high": 1, "log": "complement"}}}, "high=1, and 1 − high has no logarithm"),
    "log": ({"space": {"gamma": {"low": 0, "high": 1, "log": "yes"}}}, r"gamma\.log='yes' must be True or False"),
    "structure": ({"space": {"num_envs": {"low": 1, "high": 8}}}, "num_envs is structure"),
    "twice": ({"space": {"gamma": [0.9, 0.9]}}, r"has 0\.9 twice"),
    "choice": ({"space": {"gamma": [1.9]}}, r"gamma=1\.9 is not allowed"),
    "empty choice": ({"space": {"gamma": []}}, "at least one value"),
    "setting": ({"settings": {"num_epoch": 1}}, r"\[settings\]: 'num_epoch' is unknown"),
    "method": ({"search": {"method": "tpee"}}, r"method = 'tpee' must be one of grid, random, .*Did you mean 'tpe'\?"),
    "option": ({"search": {"trails": 3}}, r"\[search\]: 'trails' is unknown\. Did you mean 'trials'\?"),
    "objective": ({"search": {"objective": "last"}}, "objective = 'last' must be one of final, auc"),
    "trials": ({"search": {"trials": 0}}, "trials=0 must be an integer >= 1"),
    "rungs": ({"search": {"rungs": [0.5]}}, "must be shares in whole percents that increase and end with 1.0"),
    "rung": ({"search": {"rungs": [0.5, 0.2, 1.0]}}, "must be shares in whole percents that increase"),
    "no rungs": ({"search": {"rungs": 1.0}}, "must be a list of shares"),
    "keep": ({"search": {"keep": 0}}, r"keep=0 is not allowed: it must be a number in \(0, 1\]"),
    "seeds": ({"seeds": [1, 1]}, "1 occurs twice"),
    "seeds of the comparison": ({"seeds": [4294967290]}, r"uses the seeds that follow .*: give smaller ones, or top = 0"),
    "env": ({"env": 3}, "env = 3 must be an id"),
    "settings": ({"settings": 3}, r"settings = 3 must be a table, \[settings\]"),
    "kind of algorithm": ({"algorithm": 3}, "algorithm = 3 must be the name of one"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_entry_is_one_line(case: str) -> None:
    change, text = BAD[case]
    with pytest.raises((TypeError, ValueError), match=text) as caught:
        read_search(BASE | change)
    assert "\n" not in str(caught.value)


def test_settings_in_both_tables_are_defaults() -> None:
    """Trials have those of the space, and the comparison has the others."""
    both = BASE | {"settings": {"learning_rate": 5e-3, "num_envs": 4}, "space": BASE["space"] | {"num_envs": [2, 8]}}
    read = read_search(both)
    default, trial = build(read, {}), build(read, {"num_envs": 8})
    assert (default.hyperparams.learning_rate, default.num_envs, trial.num_envs) == (5e-3, 4, 8)


def test_defaults_and_test_seeds() -> None:
    found = read_search(BASE | {"seeds": [3, 5]})
    assert found.seeds == (3, 5) and found.test_seeds == list(range(6, 22)) and found.rungs == Rungs((1,), 1)
    assert read_search(BASE | {"search": {"objective": "auc"}}).rungs == Rungs((10,), 10)


@pytest.mark.parametrize(
    ("shares", "rungs"),
    [
        ([1.0], Rungs((1,), 1)),
        ([0.1, 0.3, 1.0], Rungs((1, 3, 10), 10)),
        ([0.25, 0.5, 1], Rungs((1, 2, 4), 4)),
        ([0.33, 1.0], Rungs((33, 100), 100)),
    ],
)
def test_rungs_in_parts(shares: list[float], rungs: Rungs) -> None:
    assert Rungs.from_shares(shares) == rungs


@pytest.mark.parametrize("of", [10, 13, 100, 997])
def test_parts_add_up_to_a_whole_training(of: int) -> None:
    rungs = Rungs((1, 3, 10), 10)
    ends = [rungs.iterations(age, of) for age in range(11)]
    assert ends[0] == 0 and ends[-1] == of and ends[3] == math.floor(0.3 * of + 0.5)
    parts = {later - earlier for earlier, later in itertools.pairwise(ends)}
    assert parts <= {of // 10, -(-of // 10)} and min(parts) >= 1
    rungs.check_iterations(of)


def test_more_parts_than_iterations_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"the rungs divide a training into 100 parts, and it has only 10 iterations: raise total"
    ):
        Rungs.from_shares([0.33, 1.0]).check_iterations(10)
    Rungs.from_shares([0.3, 1.0]).check_iterations(10)


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), min_size=LEAST_RESULTS, max_size=40), st.floats(0.01, 1))
@settings(deadline=None)
def test_the_best_share_continues(scores: list[float], keep: float) -> None:
    kept = [score for score in scores if continues(score, scores, keep)]
    finite = sorted((score for score in scores if not math.isnan(score)), reverse=True)
    wanted = finite[: math.ceil(keep * len(scores))]
    assert sorted(kept, reverse=True)[: len(wanted)] == wanted
    assert all(score >= wanted[-1] for score in kept)  # equal ones too, and no others


def test_the_first_results_all_continue() -> None:
    assert continues(0.0, [0.0, *range(1, LEAST_RESULTS - 1)], 0.1) and not continues(0.0, [0.0, *range(1, LEAST_RESULTS)], 0.1)


def some_trials(scores: list[list[float]], objective: str = "final") -> Trials:
    """Return trials that have trained to the end of two parts, with these returns of two seeds at each."""
    trials = Trials(Rungs((1, 2), 2), objective)
    for number in range(len(scores)):
        trials.apply(asked_event(0, number, 0, number, {"x": number}))
    trials.apply({"event": "boundary", "at": 0, "env_steps": 0})
    for at in (1, 2):
        for trial, score in zip(trials.running, scores, strict=True):
            trials.apply(returns_event(at, trial, 10 * at, [at * x for x in score]))
        trials.apply({"event": "boundary", "at": at, "env_steps": 0})
    for trial in trials.running:
        trials.apply(ended_event(2, trial, "complete"))
    return trials


def test_scores_and_order() -> None:
    trials = some_trials([[1.0, 3.0], [5.0, math.nan], [4.0, 4.0], [math.nan, math.nan]])
    # The seed that diverged counts as the worst return of any trial: 2 at the end.
    assert [trials.score(trial) for trial in trials.all] == [4.0, 6.0, 8.0, 2.0]
    assert [trial.number for trial in trials.complete] == [2, 1, 0, 3]
    assert trials.busy(4) == 1.0 and trials.busy(8) == 0.5
    mean = some_trials([[1.0, 3.0], [4.0, 4.0]], "auc")
    assert [mean.score(trial) for trial in mean.all] == [3.0, 6.0]
    lost = some_trials([[math.nan, math.nan]])
    assert math.isnan(lost.score(lost.all[0]))


def test_the_log_is_read_up_to_its_last_whole_boundary(tmp_path: Path) -> None:
    trials, log = Trials(Rungs((1,), 1), "final"), TrialLog(tmp_path)
    assert log.read() == []
    first = [asked_event(0, 0, 0, 0, {"x": [1, "a"], "y": 0.1}), {"event": "boundary", "at": 0, "env_steps": 0}]
    log.append(first)
    for event in log.read():
        trials.apply(event)
    assert trials.boundary == 0 and trials.all[0].settings == {"x": [1, "a"], "y": 0.1}
    second = [returns_event(1, trials.all[0], 7, [1.5, math.nan]), {"event": "boundary", "at": 1, "env_steps": 7}]
    log.append(second)
    assert log.read() == first + second and log.read()[2]["returns"] == [1.5, None]
    whole = log.path.read_bytes()
    for size in range(len(whole)):  # torn anywhere
        log.path.write_bytes(whole[:size])
        found = log.read()
        assert found in ([], first) and found == up_to(first + second, len(found) // 2 - 1)
    for damage, what in (
        ((b'"tested"', b'"tes'), ""),
        ((b'"trial": 0, "age"', b'"trial": [], "age"'), "of trial"),
        ((b'"age"', b'"years"'), "an event 'tested' also has the keys age"),
        ((b'"trial": 0, "age"', b'"trial": 1, "age"'), "an event 'tested' of trial 1, after 1 trials"),
    ):
        assert whole.count(damage[0]) == 1
        log.path.write_bytes(whole.replace(*damage))
        with pytest.raises(ValueError, match=rf"{TRIALS}, line 3 is damaged: .*{what}"):
            log.read()


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_independent_advisers_draw_each_trial_from_its_number(method: str) -> None:
    adviser, none = ADVISERS[method](SPACE, 3), Trials(Rungs((1,), 1), "final")
    together = adviser.ask(none, 4, None)
    assert len({each["num_epochs"] for each in together}) == 1  # structure is that of the first
    trials = Trials(Rungs((1,), 1), "final")
    for number in range(4):
        alone = adviser.ask(trials, 1, structure_of(SPACE, together[0]))[0]
        assert alone == together[number]
        trials.apply(asked_event(0, number, 0, number, alone))
    assert ADVISERS[method](SPACE, 4).ask(none, 4, None) != together


def test_sobol_covers_a_dimension_evenly() -> None:
    drawn = ADVISERS["sobol"](SPACE[:2], 0).ask(Trials(Rungs((1,), 1), "final"), 16, None)
    places = np.array([math.log(each["learning_rate"] / 1e-5) / math.log(1e4) for each in drawn])
    assert sorted((16 * places).astype(int)) == [*range(16)]


OPTUNA = ["tpe", "cmaes", "nsga2"]


@pytest.mark.parametrize("method", OPTUNA)
def test_advice_depends_on_the_trials_alone(method: str) -> None:
    pytest.importorskip("optuna")
    space = SPACE[:1] + SPACE[3:4] if method != "cmaes" else SPACE[:2]
    adviser, trials = ADVISERS[method](space, 0), Trials(Rungs((1, 2), 2), "final")
    for number, settings_ in enumerate(ADVISERS["random"](space, 1).ask(trials, 12, None)):
        trials.apply(asked_event(0, number, 0, number, settings_))
    for trial in trials.running[:8]:
        trials.apply(returns_event(1, trial, 10, [-abs(math.log10(trial.settings["learning_rate"]) + 3)] * 2))
        trials.apply(ended_event(1, trial, "stopped" if trial.number % 2 else "complete"))
    trials.apply(ended_event(1, trials.running[0], "diverged"))
    structure = structure_of(space, trials.all[0].settings)
    first = adviser.ask(trials, 3, structure)
    assert first == ADVISERS[method](space, 0).ask(trials, 3, structure)
    assert all(structure_of(space, each) == structure for each in first)
    assert len({json.dumps(each) for each in first}) == 3  # a batch does not repeat a point


def advised(method: str, batches: int, log: TrialLog) -> Trials:
    """Return trials of a quadratic in batches of 16, with their events in a log. The adviser is new at each."""
    space, trials = SPACE[:2], Trials(Rungs((1,), 1), "final")
    for at in range(batches):
        events = list[dict[str, Any]]()
        for trial in trials.running:
            away = (math.log10(trial.settings["learning_rate"]) + 2) ** 2 + (math.log10(1 - trial.settings["gamma"]) + 2.5) ** 2
            events += [trials.apply(returns_event(at, trial, 1, [-away])), trials.apply(ended_event(at, trial, "complete"))]
        for slot, each in enumerate(ADVISERS[method](space, 0).ask(trials, 16, {})):
            events.append(trials.apply(asked_event(at, len(trials.all), 0, slot, each)))
        log.append([*events, trials.apply({"event": "boundary", "at": at, "env_steps": 0})])
    return trials


@pytest.mark.parametrize(("method", "batches"), [("cmaes", 12), ("nsga2", 16)])
def test_a_method_with_generations_learns_and_resumes(method: str, batches: int, tmp_path: Path) -> None:
    """Their samplers know the generation of a trial from its attributes, which the log keeps."""
    pytest.importorskip("optuna")
    log = TrialLog(tmp_path)
    trials = advised(method, batches, log)
    scores = np.array([trials.score(trial) for trial in trials.all if trial.end]).reshape(-1, 16).mean(1)
    first, last = scores[:3].mean(), scores[-3:].mean()
    assert last > (0.2 if method == "cmaes" else 0.7) * first, scores  # scores are negative
    assert "cma:optimizer" not in log.path.read_text()
    resumed, again = Trials(Rungs((1,), 1), "final", log.read()), ADVISERS[method](SPACE[:2], 0)
    assert resumed.all == trials.all
    wanted = again.ask(trials, 3, {})
    found = ADVISERS[method](SPACE[:2], 0).ask(resumed, 3, {})
    assert found == wanted and [each.notes for each in found] == [each.notes for each in wanted]  # type: ignore[attr-defined]
    assert all(each.notes for each in wanted)  # type: ignore[attr-defined]


def test_a_log_without_generations_is_read(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    trials = advised("cmaes", 3, TrialLog(tmp_path))
    earlier = [{name: x for name, x in event.items() if name != "notes"} for event in TrialLog(tmp_path).read()]
    found = Trials(Rungs((1,), 1), "final", earlier)
    assert not any(trial.notes for trial in found.all) and any(trial.notes for trial in trials.all)
    assert len(ADVISERS["cmaes"](SPACE[:2], 0).ask(found, 2, {})) == 2


def test_tpe_finds_an_optimum_sooner_than_random_search() -> None:
    pytest.importorskip("optuna")
    space = SPACE[:2]

    def loss(settings_: dict[str, float]) -> float:
        return (math.log10(settings_["learning_rate"]) + 3) ** 2 + (math.log10(1 - settings_["gamma"]) + 2.5) ** 2

    def best(method: str, seed: int) -> float:
        adviser, trials = ADVISERS[method](space, seed), Trials(Rungs((1,), 1), "final")
        for at in range(8):
            for each in adviser.ask(trials, 8, {}):
                trials.apply(asked_event(at, len(trials.all), 0, 0, each))
                trials.apply(returns_event(at + 1, trials.all[-1], 1, [-loss(each)]))
                trials.apply(ended_event(at + 1, trials.all[-1], "complete"))
        return -trials.score(trials.complete[0])

    losses = {method: np.median([best(method, seed) for seed in range(5)]) for method in ("random", "tpe")}
    assert losses["tpe"] < 0.5 * losses["random"]


def test_a_method_without_its_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def refuse(name: str, *args: Any, **keywords: Any) -> Any:
        if name in ("optuna", "torch"):
            raise ImportError(name)
        return real(name, *args, **keywords)

    pytest.importorskip("optuna")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r'this method needs Optuna: pip install "jaxrl\[search\]"'):
        ADVISERS["tpe"](SPACE, 0)
    monkeypatch.setattr(builtins, "__import__", lambda name, *a, **k: real(name, *a, **k) if name != "torch" else refuse(name))
    with pytest.raises(ImportError, match=r'method = "gp" needs the package torch'):
        ADVISERS["gp"](SPACE, 0)

"""Learning curves: statistics against NumPy and SciPy, which seeds make a curve, and what `jaxrl plot` says and draws."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import trim_mean

from jaxrl.runtime import figures, plots
from jaxrl.runtime.cli import main
from jaxrl.runtime.curves import Scale, env_name, flatten, group_runs, label_groups, make_curve
from jaxrl.runtime.plots import Curve
from jaxrl.runtime.reading import choose_key, find_runs, read_run, read_runs
from jaxrl.runtime.sinks import JsonLines
from jaxrl.runtime.statistics import seed_interval, trimmed_mean
from jaxrl.spec import algorithm_name, brief

EVALUATION, TRAINING = "evaluation/episodic_return", "charts/episodic_return"
NAN = np.nan


def write_run(
    folder: Path,
    returns: Any,
    *,
    steps: Sequence[float] = (),
    seeds: Sequence[int] | None = None,
    algorithm: str = "ppo",
    env: Any = "CartPole-v1",
    hyperparams: dict[str, Any] | None = None,
    parts: dict[str, Any] | None = None,
    diverged: Any = None,
    key: str = EVALUATION,
    **settings: Any,
) -> Path:
    """A folder as ``jaxrl.run`` leaves it, as far as curves are concerned. ``returns``: [chunks, seeds]."""
    returns = np.asarray(returns, np.float64)
    num_chunks, num_seeds = returns.shape
    seeds, steps = list(seeds or range(num_seeds)), list(steps or 100 * np.arange(1, num_chunks + 1))
    agent = {
        "builder": {"import": f"jaxrl.algorithms.{algorithm}:make_{algorithm}"},
        "env": env,
        "settings": {"learning_rate": 0.001, **settings},
        "parts": parts or {},
    }
    folder.mkdir(parents=True)
    config = {"agent": agent, "run": {"seeds": seeds, "hyperparams": hyperparams}}
    (folder / "config.json").write_text(json.dumps(config))
    lost = np.zeros((num_chunks, num_seeds), bool) if diverged is None else np.asarray(diverged)
    records = [
        {
            "iteration": i + 1,
            "total_steps": int(np.max(steps[i])),
            "env_steps": np.broadcast_to(steps[i], num_seeds),
            "sps": 1.0,
            "diverged": lost[i],
            key: returns[i],
        }
        for i in range(num_chunks)
    ]
    JsonLines(folder, records).close()
    return folder


def curves_of(*folders: Path, key: str = EVALUATION, pool: bool = False) -> dict[str, Curve]:
    groups = group_runs(read_runs(folders), pool=pool)
    return {label: make_curve(group, key, label) for group, label in zip(groups, label_groups(groups), strict=True)}


# ------------------------------------------------------------------------------------------------------------------ statistics


def test_interquartile_mean_by_hand() -> None:
    assert trimmed_mean(np.array([100.0, 0, 1, 2, 3, 4, 5, 6]), 0.25) == 3.5  # 2, 3, 4 and 5 are left
    assert trimmed_mean(np.array([9.0, 1, NAN, 2, -50]), 0.25) == 1.5  # of four values, 1 and 2
    assert trimmed_mean(np.array([9.0, 1, NAN, 2]), 0.25) == 4  # three: their mean
    assert np.isnan(trimmed_mean(np.array([NAN, NAN]), 0.25))
    np.testing.assert_array_equal(trimmed_mean(np.array([[1.0, NAN], [NAN, NAN]]), 0.0), [1, NAN])


@pytest.mark.parametrize("num_seeds", range(1, 14))
@pytest.mark.parametrize("cut", [0.0, 0.25])
def test_trimmed_mean_is_scipys(num_seeds: int, cut: float) -> None:
    values = np.random.default_rng(num_seeds).normal(size=(5, num_seeds))
    np.testing.assert_allclose(trimmed_mean(values, cut), trim_mean(values, cut, axis=1))
    with_gaps = np.insert(values, num_seeds // 2, NAN, axis=1)
    np.testing.assert_allclose(trimmed_mean(with_gaps, cut), trim_mean(values, cut, axis=1))


@pytest.mark.parametrize(("metric", "cut"), [("iqm", 0.25), ("mean", 0.0)])
def test_interval_is_that_of_all_resamples(metric: str, cut: float) -> None:
    """With five seeds all 5^5 resamples can be listed."""
    values = np.array([1.0, 2.5, 3.1, 4.7, 9.3])
    every = [trim_mean(values[list(drawn)], cut) for drawn in itertools.product(range(5), repeat=5)]
    middle, low, high = seed_interval(np.stack([values, 10 * values]), metric=metric, resamples=40_000, level=0.9)
    np.testing.assert_allclose(middle, [trim_mean(values, cut), 10 * trim_mean(values, cut)])
    np.testing.assert_allclose([low[0], high[0]], np.quantile(every, [0.05, 0.95]), atol=0.08)
    np.testing.assert_allclose([low[1], high[1]], [10 * low[0], 10 * high[0]])  # the same seeds are drawn at every point


def test_stratified_interval_draws_from_each_stratum_as_many_as_it_has() -> None:
    values, strata = np.array([1.0, 20.0, 2.0, 21.0, 29.0]), np.array([0, 1, 0, 1, 1])
    low_two, high_three = values[strata == 0], values[strata == 1]
    every = [
        np.mean([*low_two[list(a)], *high_three[list(b)]])
        for a in itertools.product(range(2), repeat=2)
        for b in itertools.product(range(3), repeat=3)
    ]
    _, low, high = seed_interval(values[None], metric="mean", strata=strata, resamples=40_000, level=0.8)
    np.testing.assert_allclose([low[0], high[0]], np.quantile(every, [0.1, 0.9]), atol=0.1)
    _, all_low, all_high = seed_interval(values[None], metric="mean", resamples=40_000, level=0.8)
    assert all_low < low - 3 and all_high > high + 3


def test_strata_without_spread_have_no_interval() -> None:
    values, strata = np.array([[0.0, 10, 0, 10, 0, 10]]), np.array([5, 2, 5, 2, 5, 2])
    middle, low, high = seed_interval(values, strata=strata)
    assert middle == low == high == 5


def test_a_missing_seed_is_no_part_of_any_resample() -> None:
    values = np.array([[4.0, NAN, 6.0, NAN, NAN]])
    middle, low, high = seed_interval(values, metric="mean")
    assert (middle, low, high) == (5, 4, 6)


# --------------------------------------------------------------------------------------------------------------------- aligning


def test_a_curve_of_one_run_keeps_its_points(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [[NAN, NAN], [1, 3], [2, 4]], steps=[[90, 100], [190, 200], [290, 300]])
    (curve,) = curves_of(folder).values()
    np.testing.assert_array_equal(curve.steps, [195, 295])  # the first was not evaluated
    np.testing.assert_array_equal(curve.values, [[1, 3], [2, 4]])
    assert (curve.panel, curve.label, list(curve.strata)) == ("CartPole-v1", "PPO", [0, 0])


def test_runs_are_interpolated_where_all_have_values(tmp_path: Path) -> None:
    write_run(tmp_path / "fine", np.arange(10.0)[:, None], steps=[*range(100, 1100, 100)], seeds=[0])
    write_run(tmp_path / "coarse", [[5.0, 6.0], [15.0, 16.0]], steps=[250, 750], seeds=[1, 2])
    (curve,) = curves_of(tmp_path).values()
    np.testing.assert_allclose(curve.steps, [250, 750])  # where the coarse one begins and ends
    np.testing.assert_allclose(curve.values, [[5, 6, 1.5], [15, 16, 6.5]])
    assert list(curve.strata) == [0, 0, 0]

    write_run(tmp_path / "short", [[7.0], [8.0], [9.0]], steps=[50, 350, 500], seeds=[9])
    (curve,) = curves_of(tmp_path).values()
    np.testing.assert_allclose(curve.steps, [250, 500])
    np.testing.assert_allclose(curve.values[-1], [10, 11, 4, 9])


def test_gaps_are_interpolated_and_ends_are_not_made_up(tmp_path: Path) -> None:
    returns = [[NAN, 0], [2, NAN], [NAN, 4], [6, NAN]]
    (curve,) = curves_of(write_run(tmp_path / "a", returns, key=TRAINING), key=TRAINING).values()
    np.testing.assert_allclose(curve.values, [[NAN, 0], [2, 2], [4, 4], [6, NAN]])


def test_a_lost_run_does_not_end_the_curve_of_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[1], [2], [3], [4]], seeds=[0])
    write_run(tmp_path / "b", [[5], [6], [NAN]], seeds=[1], diverged=[[False], [False], [True]])
    write_run(tmp_path / "c", [[NAN]], seeds=[2], diverged=[[True]])
    groups = group_runs(read_runs([tmp_path]))
    curve = make_curve(groups[0], EVALUATION, "PPO")
    np.testing.assert_array_equal(curve.steps, [100, 200, 300, 400])
    assert not curve.is_lost
    np.testing.assert_array_equal(curve.values, [[1, 5, NAN], [2, 6, NAN], [3, NAN, NAN], [4, NAN, NAN]])


def test_runs_that_all_diverged_are_drawn_as_far_as_they_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [[1], [2], [NAN]], seeds=[0], diverged=[[False], [False], [True]])
    write_run(tmp_path / "b", [[5], [NAN]], seeds=[1], diverged=[[False], [True]])
    (curve,) = curves_of(tmp_path).values()
    np.testing.assert_array_equal(curve.values, [[1, 5], [2, NAN]])
    assert curve.is_lost
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "a.svg")]) == 0
    assert "2 seeds in 2 runs, 2 diverged" in capsys.readouterr().out.replace("1 of ", "")
    assert "× all seeds diverged" in (tmp_path / "a.svg").read_text()


def test_runs_without_common_steps_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[1.0]], seeds=[0], steps=[100])
    write_run(tmp_path / "b", [[1.0]], seeds=[1], steps=[5000])
    with pytest.raises(ValueError, match=r"a' ends at step 100 and '.*b' begins at 5,000: leave one of them out"):
        curves_of(tmp_path)


def test_normalised_returns(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[20.0, 500.0]])
    write_run(tmp_path / "b", [[-500.0, -100.0]], env="Acrobot-v1")
    (group,) = group_runs(read_runs([tmp_path]), pool=True)
    curve = make_curve(group, EVALUATION, "PPO", {"CartPole-v1": Scale(20, 500), "Acrobot-v1": Scale(-500, -100)})
    np.testing.assert_allclose(curve.values, [[0, 1, 0, 1]])
    assert list(curve.strata) == [1, 1, 0, 0] and curve.panel == ""


# --------------------------------------------------------------------------------------------------------- grouping and labels


def test_curves_are_named_after_what_differs(tmp_path: Path) -> None:
    one = [[1.0, 2.0]]
    model = {"partial": {"import": "jaxrl.models:actor_critic"}, "args": [], "kwargs": {"hidden_sizes": [8, 8]}}
    wide = {**model, "kwargs": {"hidden_sizes": [256]}}
    write_run(tmp_path / "a", one, num_envs=4, gamma=0.99, parts={"model": model})
    write_run(tmp_path / "b", one, num_envs=8, gamma=0.99, parts={"model": wide})
    write_run(tmp_path / "c", one, num_envs=4, gamma=0.9, parts={"model": model}, env="gymnax:Acrobot-v1")
    groups = group_runs(read_runs([tmp_path]))
    small, large = "num_envs=4 · model.hidden_sizes=[8, 8]", "num_envs=8 · model.hidden_sizes=[256]"
    assert label_groups(groups) == [small, large, small]  # not gamma: the environment tells the third apart
    assert [group.envs for group in groups] == [["CartPole-v1"], ["CartPole-v1"], ["Acrobot-v1"]]
    write_run(tmp_path / "d", one, algorithm="dqn", tau=1.0)
    assert label_groups(group_runs(read_runs([tmp_path]))) == [*(f"PPO · {name}" for name in (small, large, small)), "DQN"]


def test_hyperparameters_that_vary_over_seeds_make_curves(tmp_path: Path) -> None:
    values = np.float32([0.0003, 0.0003, 0.01, 0.01]).tolist()
    returns = [[1.0, 2.0, 30.0, 40.0]]
    swept = {"learning_rate": values, "gamma": 0.5}
    write_run(tmp_path / "a", returns, seeds=[0, 1, 0, 1], hyperparams=swept)
    write_run(tmp_path / "b", [[3.0]], seeds=[2], learning_rate=0.0003, gamma=0.5)
    curves = curves_of(tmp_path)
    assert list(curves) == ["learning_rate=0.0003", "learning_rate=0.01"]
    np.testing.assert_array_equal(curves["learning_rate=0.0003"].values, [[1, 2, 3]])
    np.testing.assert_array_equal(curves["learning_rate=0.01"].values, [[30, 40]])


def test_repeated_seeds_are_not_put_together(tmp_path: Path) -> None:
    for name in ("old/x", "new/x"):
        write_run(tmp_path / name, [[1.0, 2.0]])
    write_run(tmp_path / "more", [[1.0, 2.0]], seeds=[7, 8], learning_rate=0.1)
    labels = list(curves_of(tmp_path))
    assert labels == ["learning_rate=0.1", "learning_rate=0.001 · new/x", "learning_rate=0.001 · old/x"]


def test_pooled_environments_are_strata(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[1.0, 2.0]])
    write_run(tmp_path / "b", [[5.0]], env="Acrobot-v1")
    assert [curve.values.shape for curve in curves_of(tmp_path, pool=True).values()] == [(1, 3)]
    groups = group_runs(read_runs([tmp_path]))
    assert len(groups) == 2 and label_groups(groups) == ["PPO", "PPO"]


def test_names_of_parts() -> None:
    assert env_name("gymnax:CartPole-v1") == env_name("CartPole-v1") == "CartPole-v1"
    assert env_name("envpool:Pong-v5?stack_num=2") == "envpool:Pong-v5?stack_num=2"
    assert env_name({"unimportable": "the environment object 'maze'"}) == "the environment object 'maze'"
    assert algorithm_name({"builder": {"import": "my.rules:reinforce"}}) == "reinforce"
    assert (
        algorithm_name({"builder": {"partial": {"import": "m:make_dqn"}, "args": [], "kwargs": {"double": False}}})
        == "DQN(double=False)"
    )
    assert brief({"unimportable": "<function <lambda> at 0x7f12ab>"}) == "<function <lambda>>"
    assert [brief(x) for x in (None, True, 3, 2.5e-4, [1, 2.0])] == ["None", "True", "3", "0.00025", "[1, 2]"]
    schedule = {"partial": {"import": "optax:linear_schedule"}, "args": [1.0], "kwargs": {"end_value": 0.1}}
    assert flatten({"schedules": {"learning_rate": schedule}, "extra_losses": []}) == {
        "schedules.learning_rate": "linear_schedule",
        "schedules.learning_rate.0": "1",
        "schedules.learning_rate.end_value": "0.1",
        "extra_losses": "[]",
    }


# ---------------------------------------------------------------------------------------------------------------------- reading


def test_runs_are_sorted_by_the_numbers_in_their_names(tmp_path: Path) -> None:
    for name in ("lr=0.0003,n=16", "lr=0.001,n=8", "lr=3e-4,n=8", "run"):
        write_run(tmp_path / "sorted" / name, [[1.0]])
    names = [path.name for path in find_runs(tmp_path / "sorted")]
    assert names == ["lr=3e-4,n=8", "lr=0.0003,n=16", "lr=0.001,n=8", "run"]


def test_runs_are_found_below_and_read_once(tmp_path: Path) -> None:
    b, a = write_run(tmp_path / "x" / "b", [[1.0]]), write_run(tmp_path / "a", [[1.0]])
    write_run(a / "checkpoints" / "inner", [[1.0]])  # a run's own folders are not searched
    assert find_runs(tmp_path) == [a, b] and find_runs(b) == [b]
    assert [run.folder for run in read_runs([b, tmp_path, tmp_path / "x"])] == [b, a]


def test_default_key_is_evaluation_where_all_have_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_run(tmp_path / "a", [[1.0]])
    b = write_run(tmp_path / "b", [[NAN]])
    for folder in (a, b):
        lines = [json.loads(line) | {TRAINING: [3.0]} for line in (folder / "records.jsonl").read_text().splitlines()]
        (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    notes: list[str] = []
    assert choose_key([read_run(a)], None, notes.append) == EVALUATION and notes == []
    assert choose_key([read_run(a), read_run(b)], None, notes.append) == TRAINING
    assert notes == [f"no evaluation yet in {b}, so this is the return of training episodes"]


# ---------------------------------------------------------------------------------------------------------------------- figures


def picture(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return imread(path)


def colours(path: Path) -> set[str]:
    """The opaque colours of a PNG."""
    red, green, blue = (picture(path)[..., :3] * 255).round().astype(int).reshape(-1, 3).T
    return {f"#{pixel:06x}" for pixel in np.unique(red << 16 | green << 8 | blue).tolist()}


def test_each_curve_has_its_colour(tmp_path: Path) -> None:
    steps, values = np.array([100.0, 200.0]), np.array([[1.0, 2.0, 4.0], [2.0, 4.0, 9.0]])
    curves = [Curve("env", f"curve {i}", steps, values + i, np.zeros(3, int)) for i in range(3)]
    bands = [plots.summarise(curve) for curve in curves]
    plots.draw_curves(bands, tmp_path / "a.png", ylabel="return", caption="three seeds", title="T")
    assert set(figures.COLOURS[:3]) <= colours(tmp_path / "a.png")
    assert figures.COLOURS[3] not in colours(tmp_path / "a.png")
    other = [plots.summarise(curve._replace(panel=f"env {i % 2}", label="one")) for i, curve in enumerate(curves)]
    plots.draw_curves(other, tmp_path / "b.png", ylabel="return", caption="three seeds")
    assert figures.COLOURS[0] in colours(tmp_path / "b.png") and figures.COLOURS[1] not in colours(tmp_path / "b.png")


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    curve = Curve("$x^{", "_a $b$ $", np.array([1.0]), np.array([[1.0]]), np.zeros(1, int))
    bands = [plots.summarise(c) for c in (curve, curve._replace(panel="other"), curve._replace(label="$\\nothing$"))]
    plots.draw_curves(bands, tmp_path / "a.svg", ylabel="return", caption="one seed")
    assert "</svg>" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.SVG", b"<?xml")])
def test_files_are_of_the_format_of_their_ending_and_repeatable(tmp_path: Path, name: str, start: bytes) -> None:
    run = write_run(tmp_path / "run", [[1.0, 2.0], [3.0, 5.0]])
    out = tmp_path / "new" / "folder" / name
    assert main(["plot", str(run), "--out", str(out)]) == 0
    first = out.read_bytes()
    assert first.startswith(start)
    assert main(["plot", str(run), "--out", str(out)]) == 0
    assert out.read_bytes() == first
    assert [path.name for path in out.parent.iterdir()] == [name]
    if name == "a.pdf":
        assert b"/Type3" not in first


# ---------------------------------------------------------------------------------------------------------------------- command


def test_plot_prints_how_curves_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs/a", [[0.0] * 5, [500, 100, 200, 400, NAN]], diverged=[[False] * 5, [False] * 4 + [True]])
    write_run(tmp_path / "runs/b", [[7.0], [12.25]], algorithm="dqn", steps=[1000, 20_000])
    assert main(["plot", "runs"]) == 0
    out, err = capsys.readouterr()
    first, ppo, dqn = out.splitlines()
    assert err == "" and first == "curves.png: greedy evaluation return"
    assert ppo.startswith("  CartPole-v1 · PPO  4 of 5 seeds, 1 diverged     at 200 steps  300.0  [")
    low, high = (float(x) for x in ppo.split("[")[1].rstrip("]").split(", "))
    assert 100 <= low < 300 < high <= 500
    assert dqn == "  CartPole-v1 · DQN  1 seed                    at 20,000 steps   12.2"
    assert picture(tmp_path / "curves.png").shape[0] > 500


def test_plot_of_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", [[0.0, 1.0, 2.0, 97.0]])
    for metric, value in (("iqm", "1.50"), ("mean", "25.00")):
        assert main(["plot", str(run), "--metric", metric, "--out", str(tmp_path / "a.png"), "--title", "$\\gamma$"]) == 0
        assert f"  {value}  [" in capsys.readouterr().out


def test_plot_of_another_key_and_normalised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", [[1.0, 3.0]], key="losses/entropy")
    args = ["plot", str(run), "--key", "losses/entropy", "--normalize", "CartPole-v1=0,4", "--out", str(tmp_path / "a.png")]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "normalised losses/entropy\n" in out and "  0.5000  [0.2500, 0.7500]\n" in out


def test_seeds_without_a_value_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hyperparams = {"learning_rate": [0.1, 9.0]}
    run = write_run(tmp_path / "a", [[1.0, NAN]], hyperparams=hyperparams, diverged=[[False, True]], seeds=[0, 0])
    (tmp_path / "empty").mkdir()
    begun = write_run(tmp_path / "begun", np.empty((0, 1)))
    assert main(["plot", str(run.parent), "--out", str(tmp_path / "a.png")]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"note: no records yet in {begun}",
        f"note: no value of {EVALUATION} for learning_rate=9 (1 seed)",
    ]
    assert out.count("\n") == 2 and "learning_rate=0.1" in out


def test_too_many_curves_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = [0.001 * (i + 1) for i in range(29)]
    run = write_run(tmp_path / "a", [[1.0] * 29, [2.0] * 29], hyperparams={"learning_rate": rates})
    assert main(["plot", str(run), "--out", str(tmp_path / "a.png")]) == 0
    out, err = capsys.readouterr()
    assert err == "note: 29 curves are more than can be told apart: name fewer runs\n" and out.count("\n") == 30


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "name at least one folder of a run"),
        (["nowhere"], "'nowhere' is not the folder of a run, or of runs: there is no such folder"),
        (["file"], "it is a file"),
        (["hollow"], "'hollow' holds no run"),
        (["begun"], "'begun' has no records yet: wait for the first chunk"),
        (["later"], "none of the 2 runs has records yet"),
        (["broken"], "line 1 is damaged"),
        (["misfit"], "does not fit the config.json beside it"),
        (["uneven"], "uneven/records.jsonl does not fit the config.json beside it"),
        (["other"], "lacks 'agent' and 'run'"),
        (["run", "--key", "loses/td"], "unknown log key 'loses/td'. Did you mean 'losses/td'?"),
        (["run", "--key", "evaluation/x"], "There are: diverged, losses/td."),
        (["run"], "unknown log key 'charts/episodic_return'"),
        (["run", "good", "--key", EVALUATION], "'run' has no value of 'evaluation/episodic_return'"),
        (["good", "--out", "a.jpg"], "file ending '.jpg', which is unknown: choose one of .png, .pdf, .svg"),
        (["good", "--out", "curves"], "file ending ''"),
        (["good", "--out", "file/a.png"], "--out 'file/a.png' cannot be written to"),
        (["good", "--out", "folder.png"], "--out 'folder.png' cannot be written to"),
        (["good", "--level", "95"], "--level 95 must be between 0 and 1"),
        (["good", "--normalize", "CartPole-v1"], "must be ENV=LOW,HIGH"),
        (["good", "--normalize", "CartPole-v1=1,1"], "two different numbers"),
        (["good", "--normalize", "CartPole=0,1"], "Did you mean 'CartPole-v1'?"),
        (["good", "acrobot", "--normalize", "CartPole-v1=0,1"], "--normalize lacks 'Acrobot-v1'"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "good", [[1.0, 2.0]])
    write_run(tmp_path / "acrobot", [[1.0, 2.0]], env="Acrobot-v1")
    write_run(tmp_path / "run", [[1.0]], key="losses/td")
    write_run(tmp_path / "begun", np.empty((0, 1)))
    for name in ("later/a", "later/b"):
        write_run(tmp_path / name, np.empty((0, 1)))
    write_run(tmp_path / "broken", [[1.0]])
    (tmp_path / "broken" / "records.jsonl").write_text("{\n")
    write_run(tmp_path / "misfit", [[1.0, 2.0]])
    (tmp_path / "misfit/config.json").write_text((tmp_path / "run/config.json").read_text())
    uneven = write_run(tmp_path / "uneven", [[1.0]]) / "records.jsonl"
    uneven.write_text(uneven.read_text() + uneven.read_text().replace("[1.0]", "[1.0, 2.0]"))
    write_run(tmp_path / "other", [[1.0]])
    (tmp_path / "other/config.json").write_text("{}")
    (tmp_path / "hollow").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["plot", *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("jaxrl: ") and words in err
    assert sorted(tmp_path.rglob("*")) == before


def test_help_is_short_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["plot", "--help"])
    text = capsys.readouterr().out
    assert exit_.value.code == 0
    for words in ("--out", "--key", "--metric", "--level", "--title", "--pool", "--normalize", "jaxrl plot runs/quickstart"):
        assert words in text
    with pytest.raises(SystemExit) as exit_:
        main(["plot", "x", "--metrik", "mean"])
    assert exit_.value.code == 2 and "--metric" in capsys.readouterr().err


def test_plotting_starts_no_backend_and_no_pyplot(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [[1.0, 2.0], [3.0, 4.0]])
    code = (
        "import sys; from jaxrl.runtime.cli import main; code = main(sys.argv[1:]);"
        "from jax._src import xla_bridge; sys.exit(code or len(xla_bridge._backends) or 'matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "plot", str(run), "--out", str(tmp_path / "a.png")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "")

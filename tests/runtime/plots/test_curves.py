"""Curves: the seeds and runs they contain, their points and their labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.builder.spec import algorithm_name, brief
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.logs.read_runs import choose_key, find_runs, read_run, read_runs
from jaxrl.runtime.plots import draw
from jaxrl.runtime.plots.curves import Scale, env_name, flatten, group_runs, label_groups, make_curve, x_axis_name
from jaxrl.runtime.plots.draw import Curve
from jaxrl.runtime.status.in_words import progress_in_words, speed_in_words
from jaxrl.runtime.status.run_status import read_run_status
from tests.helpers.written_runs import EVALUATION, TRAINING, write_run

NAN = np.nan


def curves_of(*folders: Path, key: str = EVALUATION, pool: bool = False) -> dict[str, Curve]:
    groups = group_runs(read_runs(folders), pool=pool)
    return {label: make_curve(group, key, label) for group, label in zip(groups, label_groups(groups), strict=True)}


# --------------------------------------------------------------------------------------------------------------------- aligning


def test_a_curve_of_one_run_keeps_its_points(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [[NAN, NAN], [1, 3], [2, 4]], steps=[[90, 100], [190, 200], [290, 300]])
    (curve,) = curves_of(folder).values()
    np.testing.assert_array_equal(curve.steps, [195, 295])  # the first one was not evaluated
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


def test_a_seed_that_diverged_does_not_move_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, diverged = [[90, 110], [190, 150], [290, 150]], [[False, False], [False, True], [False, True]]
    folder = write_run(tmp_path / "a", [[1, 5], [2, NAN], [3, NAN]], steps=steps, diverged=diverged)
    (curve,) = curves_of(folder).values()
    np.testing.assert_array_equal(curve.steps, [90, 190, 290])
    figures: list[Any] = []
    monkeypatch.setattr(draw, "save", lambda figure, path: figures.append(figure))
    history = {"env_steps": np.array(steps), "diverged": np.array(diverged), EVALUATION: curve.values}
    draw.learning_curve(history, tmp_path / "a.png", title="PPO")
    first, second, mean, *_ = (line.get_xdata() for line in figures[0].axes[0].lines)
    np.testing.assert_array_equal([first, second, mean], [[90, 190, 290], [110, 150, 150], [90, 190, 290]])


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
    small, large = "num envs 4 · model hidden sizes [8, 8]", "num envs 8 · model hidden sizes [256]"
    assert label_groups(groups) == [small, large, small]  # without gamma: the environment distinguishes the third
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
    assert list(curves) == ["learning rate 0.0003", "learning rate 0.01"]
    np.testing.assert_array_equal(curves["learning rate 0.0003"].values, [[1, 2, 3]])
    np.testing.assert_array_equal(curves["learning rate 0.01"].values, [[30, 40]])


def test_steps_of_runs_that_learn_from_a_dataset_are_updates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {"data": {"import": "x:y"}}
    collected = write_run(tmp_path / "a", [[1.0]])
    offline = write_run(tmp_path / "b", [[3.0]], parts=data)
    names = [x_axis_name(group_runs(read_runs(folders))) for folders in ([collected], [offline], [tmp_path])]
    assert names == ["environment steps per seed", "updates per seed", "environment steps per seed or updates per seed"]
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "a.svg")]) == 0
    drawn = capsys.readouterr().out
    assert re.findall(r"at 100 \w+", drawn) == ["at 100 steps", "at 100 updates"]
    status = read_run_status(offline, "b", 0.0)
    assert status.offline and "100 updates per seed" in progress_in_words(status) and speed_in_words(status) == "1 updates/s"
    online_too = write_run(tmp_path / "c", [[3.0]], parts=data, online=True)
    assert not read_run_status(online_too, "c", 0.0).offline


def test_repeated_seeds_are_not_put_together(tmp_path: Path) -> None:
    for name in ("old/x", "new/x"):
        write_run(tmp_path / name, [[1.0, 2.0]])
    write_run(tmp_path / "more", [[1.0, 2.0]], seeds=[7, 8], learning_rate=0.1)
    labels = list(curves_of(tmp_path))
    assert labels == ["learning rate 0.1", "learning rate 0.001 · new/x", "learning rate 0.001 · old/x"]


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
    write_run(a / "checkpoints" / "inner", [[1.0]])  # subfolders of a run are not searched
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
    assert notes == [f"no evaluation yet in {b}: showing the return of training episodes"]

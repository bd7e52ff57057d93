"""Data of a run in TensorBoard and W&B."""

from __future__ import annotations

import json
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.runtime.logs.trackers import TensorBoard, WeightsAndBiases, member_names
from jaxrl.runtime.run import run
from tests.helpers.agents import cartpole
from tests.helpers.records import SEEDS, record


def read_events(path: Path) -> Iterator[Any]:
    from tensorboardX.proto.event_pb2 import Event

    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length


def events(folder: Path) -> list[tuple[str, int, float | None]]:
    """Return (tag, step, value) of every scalar in an event folder, and (tag, step, None) of every histogram."""
    return [
        (value.tag, event.step, None if value.HasField("histo") else value.simple_value)
        for path in sorted(folder.iterdir())
        for event in read_events(path)
        for value in event.summary.value
    ]


# ------------------------------------------------------------------------------------------------------------------- tensorboard


def test_tensorboard_has_means_seeds_and_histograms(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path, SEEDS, [])
    sink.log(record(1, **{"charts/episodic_return": np.array([1.0, 4.0])}))
    sink.log(record(2))
    sink.close()
    mean = events(tmp_path / "tensorboard" / "mean")
    assert ("charts/episodic_return", 10, 2.5) in mean
    assert ("charts/episodic_return", 20, pytest.approx(2 / 7)) in mean  # of the seed that has a value
    assert ("charts/SPS", 10, pytest.approx(1e5 / 7)) in mean
    assert ("seeds/charts/episodic_return", 10, None) in mean
    each = events(tmp_path / "tensorboard" / "seed_8")
    assert [(step, value) for tag, step, value in each if tag == "charts/episodic_return"] == [(10, 4.0)]


def test_tensorboard_leaves_out_what_is_not_finite_and_histograms_that_have_no_bins(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path, SEEDS, [])
    sink.log(record(1, **{"charts/episodic_return": np.array([np.inf, 4.0])}))
    sink.log(record(2, **{"charts/episodic_return": np.array([1e30, 1e30])}))
    sink.log(record(3, **{"charts/episodic_return": np.array([-1.7e308, 1.7e308])}))
    sink.close()
    mean = events(tmp_path / "tensorboard" / "mean")
    assert ("charts/episodic_return", 10, 4.0) in mean and ("seeds/charts/episodic_return", 10, None) in mean
    assert ("charts/episodic_return", 20, pytest.approx(1e30)) in mean
    assert not any(tag == "charts/episodic_return" for tag, step, _ in events(tmp_path / "tensorboard" / "seed_3") if step == 10)


def test_tensorboard_of_many_seeds_has_their_mean_only(tmp_path: Path) -> None:
    many = list(range(17))
    sink = TensorBoard(tmp_path, many, [])
    sink.log({**record(1), **{key: np.zeros(17) for key, value in record(1).items() if isinstance(value, np.ndarray)}})
    sink.close()
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == ["mean"]


def test_members_with_the_same_seed_have_names_of_their_own(tmp_path: Path) -> None:
    assert member_names([3, 8]) == ["seed_3", "seed_8"] and member_names([3]) == member_names(list(range(17))) == []
    sink = TensorBoard(tmp_path, [3, 3], [])
    sink.log(record(1, **{"charts/episodic_return": np.array([1.0, 4.0])}))
    sink.close()
    for name, value in (("member_0_seed_3", 1.0), ("member_1_seed_3", 4.0)):
        assert ("charts/episodic_return", 10, value) in events(tmp_path / "tensorboard" / name)


def test_what_was_flushed_is_in_the_event_files(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path, [0], [])
    for i in range(50):
        sink.log({key: value[:1] if isinstance(value, np.ndarray) else value for key, value in record(i).items()})
    sink.flush()
    assert {step for _, step, _ in events(tmp_path / "tensorboard" / "mean")} == set(range(0, 500, 10))
    sink.close()


def test_a_resumed_run_tells_tensorboard_what_to_drop(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import SessionLog

    TensorBoard(tmp_path, [0], [record(1), record(2)]).close()
    (path,) = (tmp_path / "tensorboard" / "mean").iterdir()
    starts = [event for event in read_events(path) if event.session_log.status == SessionLog.START]
    assert [event.step for event in starts] == [21]  # TensorBoard drops this step and later ones


def described(folder: Path) -> list[dict[str, Any]]:
    """Return the data of TensorBoard's table of hyperparameters in each event folder below."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    found = []
    for path in sorted(folder.rglob("events*")):
        for event in read_events(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    assert (
                        data.WhichOneof("data") == "session_start_info"
                    )  # the columns are those of all runs, not only the first
                    row = {name: getattr(x, x.WhichOneof("kind")) for name, x in dict(data.session_start_info.hparams).items()}
                    found.append({"of": path.parent.name, **row})
    return found


@pytest.mark.slow
def test_tensorboard_has_the_hyperparameters_of_a_run(tmp_path: Path) -> None:
    agent = cartpole("ppo")
    for name, given in (("alike", {}), ("varied", {"hyperparams": {"learning_rate": [1e-3, 1e-4]}})):
        run(agent, 32, seeds=[3, 4], out=tmp_path / name, eval_every=0, quiet=True, **given)
    (alike,) = described(tmp_path / "alike")
    assert alike["of"] == "mean" and alike["learning_rate"] == pytest.approx(agent.hyperparams.learning_rate)
    assert (alike["algorithm"], alike["environment"], alike["anneal"]) == ("PPO", "CartPole-v1", agent.spec["settings"]["anneal"])
    assert alike["num_envs"] == agent.num_envs and alike["total_steps"] == 32 and "optimizer" not in alike
    one, other = described(tmp_path / "varied")
    assert [one.pop("of"), other.pop("of")] == ["seed_3", "seed_4"]
    assert {name: (one[name], other[name]) for name in one if one[name] != other[name]} == {
        "learning_rate": pytest.approx((1e-3, 1e-4))
    }


def test_tensorboard_of_many_that_differ_has_what_they_share(tmp_path: Path) -> None:
    settings = [{"learning_rate": f"{i}e-3", "gamma": "0.9", "dueling": "False"} for i in range(17)]
    TensorBoard(tmp_path, [0] * 17, [], settings).close()
    assert described(tmp_path) == [{"of": "mean", "gamma": 0.9, "dueling": False}]


# ------------------------------------------------------------------------------------------------------------------------ wandb


class FakeWandb(types.ModuleType):
    """A fake W&B, which refuses to start without a network."""

    def __init__(self, online: bool = True) -> None:
        super().__init__("wandb")
        self.online, self.settings, self.rows, self.finished, self.step = online, {}, [], 0, 0

    def init(self, **settings: Any) -> Any:
        if not self.online:
            raise RuntimeError("Network error:\n no route to host")
        self.settings = settings
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "rows")

    def log(self, row: dict[str, float], step: int) -> None:
        assert step >= self.step
        self.rows.append(row)
        self.step = step + 1

    def finish(self) -> None:
        self.finished += 1


def test_wandb_gets_means_and_seeds_and_goes_on_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb())
    ids = []
    for last in (2, 3):  # killed after two records, and resumed from the first
        fake = sys.modules["wandb"]
        sink = WeightsAndBiases(tmp_path, "project", {"run": {"seeds": SEEDS}}, SEEDS)
        for i in range(last - 1, last + 1):
            sink.log(record(i))
        sink.close()
        ids.append(fake.settings["id"])
    assert [row["rows"] for row in fake.rows] == [10, 20, 30]
    assert ids[0] == ids[1] and fake.settings["resume"] == "allow" and fake.finished == 2
    row = fake.rows[0]
    assert row["rows"] == 10 and row["charts/episodic_return"] == row["seed_3/charts/episodic_return"] == 1 / 7
    assert "seed_8/charts/episodic_return" not in row and not any(np.isnan(value) for value in row.values())
    assert json.dumps(fake.settings["config"])


def test_wandb_that_cannot_start_is_one_readable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(online=False))
    with pytest.raises(OSError, match=r"wandb='p': W&B could not start \(Network error: no route to host\).*WANDB_MODE=offline"):
        WeightsAndBiases(tmp_path, "p", {}, SEEDS)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r'pip install "jaxrl\[wandb\]"'):
        WeightsAndBiases(tmp_path, "p", {}, SEEDS)

"""The benchmark of fine-tuning: each seed continues from its offline parameters; gain and dip are those of the curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import jaxrl
from benchmarks import fine_tuning
from benchmarks.__main__ import main
from benchmarks.fine_tuning import Case
from benchmarks.offline_scores import TASKS, Task
from tests.helpers.datasets import random_dataset

ABOUT = {"command": "c", "date": "2026-01-01", "hardware": {"cpu": "a CPU"}, "versions": {"jax": "1"}}


def result_of(mixed: list[float], alone: list[float], rows: tuple[int, ...] = (0, 100, 200, 1_000)) -> dict[str, Any]:
    """Return a result with the same returns for both seeds, except that their means are those given."""
    ways = {"0.5": mixed, "0": alone}
    online = {way: {"rows": list(rows), "returns": [[x - 1, x + 1] for x in found]} for way, found in ways.items()}
    return {**ABOUT, "case": Case(rows=1_000, num_seeds=2)._asdict(), "offline": [0, 0], "online": online}


@pytest.mark.parametrize(
    ("mixed", "gain", "down", "met"),
    [
        ([100, 95, 20, 115], 0.15, 0.05, True),  # the evaluation at 200 rows is after the first tenth
        ([100, 85, 100, 115], 0.15, 0.15, False),
        ([100, 120, 100, 105], 0.05, 0.0, False),
        ([-100, -105, -100, -80], 0.2, 0.05, True),
    ],
)
def test_gain_and_dip(mixed: list[float], gain: float, down: float, met: bool) -> None:
    result = result_of(mixed, [100, 10, 20, 30])
    assert fine_tuning.changes(result, "0.5") == pytest.approx((gain, down))
    assert fine_tuning.changes(result, "0") == pytest.approx((-0.7, 0.9))
    assert fine_tuning.missed(result) is not met  # the way without data is for comparison
    report = fine_tuning.fine_tuning_report(result)
    assert f"{gain:+.1%}" in report and f"{down:.1%}" in report and ("NO" in report) is not met


@pytest.mark.slow
def test_a_tiny_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = "Pendulum-v1?max_steps_in_episode=10"
    settings = {"model": {"hidden_sizes": (4,)}, "batch_size": 64}
    monkeypatch.setitem(TASKS, "tiny", Task(env, settings, 0, 0))
    data = random_dataset(env)
    jaxrl.save_dataset(tmp_path / "tiny-replay.npz", data)
    case = Case("tiny-replay", 100, 320, 2, 2, 8, 512)
    result = fine_tuning.measure(tmp_path / "out", tmp_path / "work", tmp_path, case, quiet=True)
    written = json.loads((tmp_path / "out/fine_tuning.json").read_text())
    assert written == json.loads(json.dumps(result)) and result["digest"] == data.info.digest
    for way in ("0.5", "0"):
        found = result["online"][way]
        assert found["rows"] == [0, *range(16, 321, 16)]  # of 20 evaluations, two are in the first tenth
        assert found["returns"][0] == pytest.approx(result["offline"], rel=0.1)  # other episodes
    assert result["online"]["0.5"]["returns"][-1] != result["online"]["0"]["returns"][-1]
    assert not (tmp_path / "work").exists() and "| 0.5 " in fine_tuning.fine_tuning_report(result)


def test_a_missing_dataset_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work, sets = (str(tmp_path / name) for name in ("work", "sets"))
    assert main(["fine-tuning", "--out", str(tmp_path), "--work", work, "--datasets", sets]) == 2
    assert "run 'python -m benchmarks datasets halfcheetah-replay --out " in capsys.readouterr().err

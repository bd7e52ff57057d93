"""``jaxrl status`` of sweeps and of folders with several runs."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jaxrl.runtime.cli.commands import status as command
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.logs.live_status import End
from jaxrl.runtime.logs.records import TRAINING_RETURN
from jaxrl.runtime.status.folder_status import FolderStatus
from jaxrl.runtime.status.sweep_status import SweepStatus
from tests.helpers.live_files import write_status
from tests.helpers.run_states import DEAD, after_each_look, as_json, cut, shown, written
from tests.helpers.written_runs import EVALUATION

# --------------------------------------------------------------------------------------------------------------------- sweeps


def write_sweep(folder: Path, **changes: Any) -> Path:
    names = ["num_envs=2", "num_envs=4 a=b", "num_envs=8", "num_envs=16"]
    folder.mkdir()
    body = {"sweep": {"algorithm": "ppo", "env": "Maze-v0"}, "jobs": names, "done": names[:1]}
    (folder / "sweep.json").write_text(json.dumps(body | changes))
    written(folder / "jobs" / "num_envs=2", 5, end=End("finished", "done", 1.0))
    written(folder / "jobs" / "num_envs=4,a=b", 3)
    written(folder / "jobs" / "num_envs=8", 1, end=End("failed", "no disk", 1.0))
    return folder


def test_a_sweep_has_a_line_for_each_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sweep(tmp_path / "sweep")
    write_status(folder)
    code, out = shown(folder, capsys)
    lines = out.splitlines()
    assert code == 1 and lines[0] == f"{folder}: sweep of ppo · Maze-v0: 1 of 4 jobs are done"
    assert lines[1].startswith(f"state  running: process {os.getpid()} on ")
    assert lines[2].startswith("job    num_envs=8: failed: no disk; last sign of life ") and len(lines) == 9
    table = [re.split(r"  +", line) for line in lines[4:]]
    assert table[0] == ["job", "state", "progress", "step", "return", "steps/s", "ETA"]
    assert table[1] == ["num_envs=2", "finished", "100 %", "500", "8.50 ± 0.50", "–", "–"]
    assert table[2][:6] == ["num_envs=4 a=b", "running", "60 %", "300", "4.50 ± 0.50", "1"] and table[2][6].endswith(" s")
    assert table[3] == ["num_envs=8", "failed", "20 %", "100", "0.500 ± 0.500", "–", "–"]
    assert table[4] == ["num_envs=16", "waiting", "–", "–", "–", "–", "–"]
    found = as_json(folder, capsys)
    assert list(found) == [field.name for field in dataclasses.fields(SweepStatus)]
    assert [job["state"] for job in found["jobs"]] == ["finished", "running", "failed", "waiting"]
    assert found["jobs"][1]["run"]["rows"] == 300 and found["jobs"][3]["run"] is None


def test_a_sweep_ends_well_when_all_its_jobs_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sweep(tmp_path / "sweep", jobs=["num_envs=2"])
    code, out = shown(folder, capsys)  # without status.json, as jaxrl 0.2 wrote it
    assert code == 0 and "1 of 1 jobs are done" in out and "state  finished: all its jobs are done" in out
    write_status(folder, process=DEAD)
    found = as_json(folder, capsys)
    assert found["reason"].startswith("all its jobs are done; its process ended") and found["written"] > 1e9  # not the job's, 1.0
    (folder / "sweep.json").write_text(json.dumps({"sweep": {}, "done": ["num_envs=2"]}))
    (folder / "jobs" / "num_envs=8" / "config.json").unlink()
    found = as_json(folder, capsys)  # the jobs of jaxrl 0.2 that are not done are those that have a folder
    assert [job["job"] for job in found["jobs"]] == ["num_envs=2", "num_envs=4,a=b"] and found["state"] == "gone"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"sweep": {}}', '{"sweep": {}, "done": [".."]}', '{"sweep": {}, "done": ["a\\u0000"]}']
)
def test_a_damaged_sweep_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.json").write_text(text)
    assert main(["status", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "sweep.json is damaged. Restore it from a copy" in err and err.count("\n") == 1


def test_a_damaged_job_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sweep(tmp_path / "sweep")
    cut(folder / "jobs" / "num_envs=2" / "config.json")
    found = as_json(folder, capsys)
    assert found["jobs"][0] == {"job": "num_envs=2", "state": "unknown", "run": None} and "cannot be read" in found["problems"][0]


# -------------------------------------------------------------------------------------------------------------- several runs


def test_a_folder_has_a_line_for_each_run_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "run10", 3)
    written(tmp_path / "run9", 5, end=End("finished", "done", 1.0))
    written(tmp_path / "group/new", 0)
    write_sweep(tmp_path / "sweep")
    write_status(tmp_path / "sweep")
    code, out = shown(tmp_path, capsys)
    lines = out.splitlines()
    assert code == 1 and lines[0] == f"{tmp_path}: 3 of 4 running"  # a job of the sweep failed
    table = [re.split(r"  +", line) for line in lines[1:]]
    assert table[0] == ["run", "algorithm", "environment", "state", "progress", "return", "ETA"] and len(table) == 5
    assert table[1][:6] == ["group/new", "PPO", "Maze-v0", "running", "–", "–"]
    assert table[2] == ["run9", "PPO", "Maze-v0", "finished", "100 %", "8.50 ± 0.50", "–"]
    assert table[3][:6] == ["run10", "PPO", "Maze-v0", "running", "60 %", "4.50 ± 0.50"] and table[3][6].endswith(" s")
    assert table[4] == ["sweep", "ppo", "Maze-v0", "running", "1 of 4 jobs", "–", "–"]
    found = as_json(tmp_path, capsys)
    assert list(found) == [field.name for field in dataclasses.fields(FolderStatus)]
    assert [(each["kind"], each["state"]) for each in found["runs"]] == [
        ("run", "running"),
        ("run", "finished"),
        ("run", "running"),
        ("sweep", "running"),
    ]
    shutil.rmtree(tmp_path / "sweep")
    assert shown(tmp_path, capsys)[0] == 0


@pytest.mark.parametrize("width", [45, 120])
def test_a_folder_in_a_terminal_of_any_width(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(force_terminal=True, width=width, height=60, file=io.StringIO(), record=True, highlight=False)
    monkeypatch.setattr(command, "terminal", lambda: console)
    written(tmp_path / "runs/a-run-with-a-name-that-is-long", 3)
    assert main(["status", str(tmp_path)]) == 0
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert ("environment" in text) == ("Maze-v0" in text) == (width > 70)
    assert "runs/a-run-with-a-name-that-is-long" in "".join(line.partition(" ")[0] for line in text.splitlines()[1:])
    assert " running " in text and " 60 % " in text and " 4.50 ± 0.50 " in text


@pytest.mark.parametrize(("evaluated_at", "expected"), [(100, "4.50 ± 0.50"), (300, "8.00 ± 0.00"), (200, "4.50 ± 0.50")])
def test_the_return_of_a_line_is_the_latest(
    evaluated_at: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run", 3)
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for record in records:
        record[TRAINING_RETURN] = record.pop(EVALUATION)
        record |= {EVALUATION: [8.0, 8.0]} if record["rows"] == evaluated_at else {}
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert f" {expected} " in shown(tmp_path, capsys)[1]


def test_a_run_that_cannot_be_read_is_named_beside_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        written(tmp_path / name)
    cut(tmp_path / "a/config.json")
    code, out = shown(tmp_path, capsys)
    assert code == 1 and re.search(rf"^problem  .*{tmp_path}/a\b.*config\.json", out, re.MULTILINE) and "\nb " in out


def test_a_folder_is_watched_until_no_run_is_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "a", 5, end=End("finished", "done", 1.0))
    written(tmp_path / "b", 2)
    after_each_look(monkeypatch, lambda: write_status(tmp_path / "b", end=End("stopped", "Ctrl-C", 1.0)))
    code, out = shown(tmp_path, capsys, "--watch")
    assert code == 1 and out.splitlines()[-1].startswith(f"{tmp_path}/b: stopped  step 200/500 ")


def test_a_sweep_is_watched_until_no_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sweep(tmp_path / "sweep")
    write_status(folder)
    job = folder / "jobs" / "num_envs=4,a=b"
    changes = [
        lambda: write_status(job, process=DEAD),
        lambda: write_status(folder, end=End("failed", "job 2", 1.0)),
    ]
    after_each_look(monkeypatch, *changes)
    code, out = shown(folder, capsys, "--watch")
    assert code == 1 and re.fullmatch(
        r"num_envs=4 a=b: gone  step 300/500  evaluation 4.50 ± 0.50  process .* was killed, or its machine went down",
        out.splitlines()[-2],
    )
    assert out.splitlines()[-1] == "sweep: failed  1 of 4 jobs are done"

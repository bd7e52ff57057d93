"""``jaxrl status``: the state of runs that run, ended, or were killed, from their folders."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.runtime.cli.commands import status as command
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.logs.files import JsonLines, read_records
from jaxrl.runtime.logs.live_status import End, Message, WorkerState, read_status_file
from jaxrl.runtime.run import RunDiverged, RunInterrupted, run
from jaxrl.runtime.status.process_state import STATES
from jaxrl.runtime.status.run_status import RunStatus
from jaxrl.runtime.status.sweep_status import SweepStatus
from jaxrl.runtime.system.process_identity import this_process
from jaxrl.types import Agent
from tests.helpers.command_line import SMALL, start
from tests.helpers.fakes import faked, press_ctrl_c
from tests.helpers.live_files import ELSEWHERE, identity_of, write_status
from tests.helpers.paths import ROOT
from tests.helpers.processes.actor_pools import workers_of
from tests.helpers.processes.children import runs, soon, stop
from tests.helpers.run_states import DEAD, after_each_look, as_json, cut, shown, written
from tests.helpers.written_runs import EVALUATION, write_run

pytestmark = pytest.mark.expensive(40)

LONG_AGO = 1e9
# -------------------------------------------------------------------------------------------------------------------- one run


def test_a_run_that_is_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = [WorkerState(1234.0, 0.5, 0, (0, 1), str(tmp_path / "run/workers/worker-0.log")), WorkerState(np.nan, 2.0, 3)]
    messages = [Message(time.time() - 65, f"message {i}\nTraceback\nKeyError: {i}") for i in range(7)]
    folder = tmp_path / "run"
    code, out = shown(written(folder, workers=workers, messages=messages), capsys)
    lines = out.splitlines()
    assert code == 0 and lines[0] == f"{folder}: PPO · Maze-v0 · 2 seeds (4, 2)"
    rows = {line[:12].strip(): line[12:] for line in lines[1:6]}
    here = this_process()
    assert re.fullmatch(rf"running: process {here.pid} on {here.host}; last written [0-9]+ s ago", rows["state"])
    assert rows["progress"] == "40 %, 200 of 500 steps per seed, iteration 2 of 5 after 1.0 s"
    assert re.fullmatch(r"1 env steps/s, ETA [0-9.]+ s", rows["speed"])
    assert rows["returns"] == "evaluation 2.50 ± 0.50 at step 200" and rows["checkpoint"] == "none yet"
    assert [re.sub(r"^\d:\d\d min ago: ", "", line[12:]) for line in lines[6:11]] == [f"KeyError: {i}" for i in range(2, 7)]
    assert lines[11] == f"logs        {folder}/records.jsonl"
    assert [line.split() for line in lines[-3:]] == [
        ["worker", "envs", "steps/s", "lag", "restarts", "log"],
        ["0", "0", "to", "1", "1.23k", "0.5", "0", f"{folder}/workers/worker-0.log"],
        ["1", "–", "–", "2", "3", "–"],
    ]


def test_before_the_first_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = shown(written(tmp_path / "run", chunks=0, eta=None), capsys)
    assert code == 0 and "no record yet: it compiles, or trains its first chunk" in out
    assert "progress" not in out and "speed" not in out and "returns" not in out
    found = as_json(tmp_path / "run", capsys)
    assert found["state"] == "running" and found["rows"] is found["progress"] is found["evaluation_return"] is None


@pytest.mark.parametrize(
    ("changes", "state", "code", "words"),
    [
        ({"process": DEAD}, "gone", 1, "process PID on .* was killed, or its machine went down"),
        ({"process": ELSEWHERE}, "running", 0, "process 7 on elsewhere; last written [0-9]+ s ago"),
        (
            {"process": ELSEWHERE, "written": LONG_AGO},
            "silent",
            1,
            "process 7 on elsewhere has not written for [0-9]+:[0-9]+ h, and cannot be seen from this machine",
        ),
        ({"written": LONG_AGO}, "running", 0, "; it has not written for [0-9]+:[0-9]+ h: its machine is overloaded, or"),
        ({"end": End("finished", "done at step 500", 1.0), "process": DEAD}, "finished", 0, "finished: done at step 500"),
        ({"end": End("stopped", "by SIGTERM", 1.0)}, "stopped", 1, "stopped: by SIGTERM; last sign of life [0-9]+ days ago"),
        ({"end": End("failed", "no disk", 1.0)}, "failed", 1, "failed: no disk"),
        ({"end": End("diverged", "all seeds", 1.0)}, "diverged", 1, "diverged: all seeds"),
    ],
)
def test_states(
    changes: dict[str, Any], state: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "a run", **changes)
    os.utime(folder / "records.jsonl", (1, 1))
    found, out = shown(folder, capsys)
    assert (
        found == code
        and re.search(f"^state       {state}: .*", out, re.MULTILINE)
        and re.search(words.replace("PID", str(os.getpid())), out)
    ), out
    assert ("ETA" in out) == (state == "running")
    assert (f"resume      jaxrl train --resume '{folder}'" in out) == (state in ("gone", "stopped", "failed"))
    assert as_json(folder, capsys)["state"] == state


def test_the_command_that_resumes_names_what_to_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", end=End("stopped", "by SIGTERM", 1.0))
    config = json.loads((folder / "config.json").read_text())
    config["agent"]["env"] = "gymnasium:mine.worlds:World"
    (folder / "config.json").write_text(json.dumps(config))
    assert f"resume      jaxrl train --resume {folder} --trust mine\n" in shown(folder, capsys)[1]
    assert as_json(folder, capsys)["trust"] == ["mine"]


def test_a_process_that_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        stop(process.pid)
        code, out = shown(written(tmp_path / "run", process=identity_of(process.pid)), capsys)
    finally:
        process.kill()
        process.wait()
    assert code == 1 and f"state       suspended: process {process.pid} on " in out and "is stopped (SIGSTOP)" in out
    assert shown(tmp_path / "run", capsys)[1].splitlines()[1].startswith("state       gone")


def test_seeds_that_diverged_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    write_run(folder, [[1.0, 2.0], [3.0, np.nan]], seeds=[4, 2], diverged=[[False, False], [False, True]])
    write_status(folder)
    assert "; 1 of 2 seeds diverged" in shown(folder, capsys)[1]
    assert as_json(folder, capsys)["diverged"] == [2]


def test_a_folder_of_an_older_version_shows_its_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run")
    (folder / "status.json").unlink()
    code, out = shown(folder, capsys)
    assert code == 1 and "unknown: it has no status.json, which would name its process" in out and "40 %" in out
    step = folder / "checkpoints" / "5"
    step.mkdir(parents=True)
    assert as_json(folder, capsys)["state"] == "unknown"  # a checkpoint without a manifest is not complete
    (step / "manifest.json").write_text("{}")
    code, out = shown(folder, capsys)
    assert code == 0 and "finished: it has a checkpoint of its last iteration" in out
    assert re.search(r"^checkpoint  iteration 5, [0-9]+ s ago$", out, re.MULTILINE)


def test_json_has_every_key_that_is_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "howto" / "logs.md").read_text()
    for kind in (RunStatus, SweepStatus):
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in page, field.name
    for state in (*STATES, "waiting"):
        assert f"  {state} " in command.HELP, state
    workers, messages = [WorkerState(np.nan, 1.0, 2, (0, 3))], [Message(1.0, "text")]
    found = as_json(written(tmp_path / "run", workers=workers, messages=messages), capsys)
    assert list(found) == [field.name for field in dataclasses.fields(RunStatus)]
    assert found["workers"] == [{"steps_per_second": None, "lag": 1.0, "restarts": 2, "envs": [0, 3], "log": None}]
    assert found["messages"] == [{"time": 1.0, "text": "text"}]
    assert found["evaluation_return"] == {"mean": 2.5, "std": 0.5, "seeds": 2, "rows": 200}
    assert (found["progress"], found["env_steps"], found["iterations"], found["pid"]) == (0.4, 400, 5, os.getpid())


def test_it_needs_no_jax(tmp_path: Path) -> None:
    written(tmp_path / "run")
    code = "import sys; from jaxrl.runtime.cli.main import main; main(sys.argv[1:]); sys.exit('jax' in sys.modules)"
    process = start("-c", code, "status", str(tmp_path / "run"))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "") and "running" in out


# ----------------------------------------------------------------------------------------------------------------- whole runs


def fail(message: str) -> Callable[[], None]:
    def raise_() -> None:
        raise OSError(message)

    return raise_


def test_a_run_records_how_it_ended(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"seeds": 2, "chunk_iterations": 2, "eval_every": 4, "quiet": True, "tensorboard": False}
    out = tmp_path / "run"
    faked(monkeypatch, {2: press_ctrl_c})
    with pytest.raises(RunInterrupted):
        run(agent, 320, out=out, **settings)
    code, text = shown(out, capsys)
    assert code == 1 and "stopped: at step 128 of 320 after" in text and ", by SIGINT; last sign" in text
    assert "40 %, 128 of 320 steps per seed, iteration 4 of 10" in text and "checkpoint  iteration 4, " in text

    faked(monkeypatch, {2: fail("no room")})
    with pytest.raises(OSError, match="no room"):
        run(agent, 320, out=out, **settings)
    found = as_json(out, capsys)
    assert (found["state"], found["reason"], found["iteration"]) == ("failed", "no room", 6)
    assert [message["text"] for message in found["messages"]] == ["resumed at step 128"]

    faked(monkeypatch, {})
    run(agent, 320, out=out, **settings)
    code, text = shown(out, capsys)
    assert code == 0 and "finished: done at step 320 of 320 after" in text and "100 %" in text and "resume  " not in text
    assert [message.text for message in read_status_file(out / "status.json").messages] == [
        "resumed at step 128",
        f"resumed at step {6 * 32 if (out / 'checkpoints' / '6').exists() else 128}",
    ]


def test_a_run_that_diverged_or_lost_its_workers_says_so(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"seeds": 2, "chunk_iterations": 2, "eval_every": 0, "quiet": True, "tensorboard": False}
    driver = faked(monkeypatch, {})
    iterate = driver.iterate
    monkeypatch.setattr(driver, "iterate", lambda *args: (*iterate(*args)[:2], np.zeros(2, bool)))
    with pytest.raises(RunDiverged):
        run(agent, 320, out=tmp_path / "diverged", **settings)
    found = as_json(tmp_path / "diverged", capsys)
    assert (found["state"], found["diverged"]) == ("diverged", [0, 1])
    assert found["reason"].startswith("stopped, since all seeds diverged, at step 64 of 320")

    driver = faked(monkeypatch, {2: lambda: vars(driver).update(failure=WorkerFailed("worker 3 is lost"), done=1)})
    with pytest.raises(WorkerFailed):
        run(agent, 320, out=tmp_path / "failed", **settings)
    found = as_json(tmp_path / "failed", capsys)
    assert found["state"] == "failed" and found["iteration"] == 3
    assert re.fullmatch("stopped, since workers failed, at step 96 of 320 after .*: worker 3 is lost", found["reason"])


def test_a_run_that_cannot_start_leaves_no_file(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faked(monkeypatch, {0: fail("no room")})
    with pytest.raises(OSError, match="no room"):
        run(agent, 320, seeds=2, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_workers_of_a_run_that_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker is killed and replaced, then the run is killed: no process is left that could say so."""
    folder = tmp_path / "run"
    env = "gymnasium:tests.helpers.gymnasium_envs:Truncation"
    flags = ["--env", env, "--num-workers", "2", "--total-steps", "10000000", "--chunk-iterations", "20", "--eval-every", "0"]
    process = start("-m", "jaxrl", "train", "ppo", *flags, *SMALL, "--out", str(folder), cwd=tmp_path)

    def restarts() -> list[int]:
        return [worker["restarts"] for worker in as_json(folder, capsys)["workers"]]

    try:
        assert soon(lambda: (folder / "records.jsonl").exists() or process.poll() is not None, 120), process.stderr
        assert soon(lambda: restarts() == [0, 0])
        os.kill(workers_of(process.pid)[1], signal.SIGKILL)
        assert soon(lambda: sum(restarts()) == 1)
        code, out = shown(folder, capsys)
        assert code == 0 and f"running: process {process.pid} on " in out
        lost = restarts().index(1)
        assert re.search(rf"s ago: gymnasium:.*: worker {lost} \(environment {lost}\) was killed by SIGKILL .*; replaced", out)
        rows = [line.split() for line in out.splitlines()[-2:]]
        assert [(row[0], row[1], row[4], row[5]) for row in rows] == [
            (str(i), str(i), str(int(i == lost)), str(folder / "workers" / f"worker-{i}.log")) for i in range(2)
        ]
        assert all(float(row[2].rstrip("k")) > 0 for row in rows)
    finally:
        process.kill()
        process.wait()
    code, out = shown(folder, capsys)
    assert code == 1 and f"gone: process {process.pid} on " in out and "ETA" not in out
    assert soon(lambda: not runs(process.pid))
    process.communicate()


# --------------------------------------------------------------------------------------------------------------------- errors


def test_what_is_not_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, words in {
        "none": "is not a run folder: there is no such folder. Name the folder that --out gave",
        "file": "is not a run folder: it is a file",
        "empty": "is not a run folder: it has no config.json. Name the folder that --out gave",
    }.items():
        assert main(["status", str(tmp_path / name)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and words in err, err
    for args, words in (
        ([], "Missing from jaxrl status: RUN"),
        (["a", "--watsh"], "--watch"),
        (["a", "--json", "--watch"], "--json prints one object"),
    ):
        assert main(["status", *args]) == 2
        assert words in capsys.readouterr().err


def link(path: Path) -> None:
    path.rename(path.with_name("target"))
    path.symlink_to(path.with_name("target"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        ("status.json", cut, "status.json: it is damaged"),
        ("status.json", link, "status.json: it is a link, which is not followed"),
        ("status.json", pipe, "status.json: it is not a regular file"),
        ("records.jsonl", link, "records.jsonl: it is a link, which is not followed"),
        ("records.jsonl", pipe, "records.jsonl: it is not a regular file"),
        ("records.jsonl", lambda path: path.write_text("{}\n{\n"), "records.jsonl: a line near its end is damaged, and was"),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_shown(
    name: str, damage: Callable[[Path], Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run")
    damage(folder / name)
    code, out = shown(folder, capsys)
    assert f"problem     {problem}" in out
    assert (code, "state       unknown" in out) == ((1, True) if name == "status.json" else (0, False))
    assert ("40 %" in out) == (name == "status.json")


def test_a_line_that_is_being_written_is_not_read_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run")
    cut(folder / "records.jsonl")
    found = as_json(folder, capsys)
    assert found["rows"] == 100 and found["problems"] == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [(cut, "cannot be read"), (link, "is a link, which is not followed"), (pipe, "it is not a regular file")],
)
def test_without_its_settings_a_run_is_not_shown(
    damage: Callable[[Path], None], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(written(tmp_path / "run") / "config.json")
    assert main(["status", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_texts_of_others_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "\x1b]0;title\x07\x9b31m\u202e"
    process = this_process()._replace(host=f"h{bad}", boot="x")
    changes: dict[str, Any] = {"messages": [Message(1.0, bad)], "workers": [WorkerState(1.0, 1.0, 1, None, f"/{bad}")]}
    folder = written(tmp_path / "run", process=process, **changes)
    config = json.loads((folder / "config.json").read_text())
    config["agent"]["env"] = f"{bad}env{bad * 1000}"
    config["agent"]["builder"] = {"unimportable": bad}
    (folder / "config.json").write_text(json.dumps(config))
    for flags in ([], ["--json"], ["--watch"]):
        if flags == ["--watch"]:
            write_status(folder, end=End("failed", bad, 1.0), **changes)
        out = shown(folder, capsys, *flags)[1]
        assert out.replace("\n", "").isprintable() and len(max(out.split("\n"), key=len)) < 600, flags
        assert "env" in out


# ---------------------------------------------------------------------------------------------------------------------- watch


def add_record(folder: Path) -> None:
    records = read_records(folder, 99)
    more = {**records[-1], "iteration": 3, "rows": 300, EVALUATION: np.array([7.0, 9.0])}
    JsonLines(folder, [*records, more]).close()


def test_changes_are_lines_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run", messages=[Message(1.0, "before")])
    end = End("finished", "done at step 500", 1.0)
    changes = [
        lambda: None,
        lambda: add_record(folder),
        lambda: write_status(folder, messages=[Message(1.0, "before"), Message(2.0, "a worker\nwas lost")]),
        lambda: write_status(folder, end=end, messages=[Message(2.0, "a worker\nwas lost")]),
    ]
    after_each_look(monkeypatch, *changes)
    code, out = shown(folder, capsys, "--watch")
    first, _, changed = out.partition("records.jsonl\n")
    assert (
        code == 0
        and "40 %" in first
        and changed.splitlines()
        == [
            "running  step 300/500  evaluation 8.00 ± 1.00  1 env steps/s",
            "a worker was lost",
            "finished  step 300/500  evaluation 8.00 ± 1.00  done at step 500",
        ]
    )


@pytest.mark.parametrize("is_terminal", [False, True])
def test_ctrl_c_ends_watching_without_a_word(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_terminal:
        console = Console(force_terminal=True, width=60, height=50, file=io.StringIO())
        monkeypatch.setattr(command, "terminal", lambda: console)
    after_each_look(monkeypatch, press_ctrl_c)
    assert main(["status", str(written(tmp_path / "run")), "--watch"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("width", [45, 120])
def test_a_terminal_of_any_width(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(force_terminal=True, width=width, height=60, file=io.StringIO(), record=True, highlight=False)
    monkeypatch.setattr(command, "terminal", lambda: console)
    messages = [Message(time.time(), "worker 1 was killed by SIGKILL; replaced (restart 1 of 10) " * 3)]
    workers = [WorkerState(1234.0, 0.0, 1, (0, 127), str(tmp_path / "run" / "workers" / "worker-0.log"))]
    folder = written(tmp_path / "run", messages=messages, workers=workers)
    assert main(["status", str(folder)]) == 0
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "".join(messages[0].text.split()) in "".join(text.split())
    row = re.search(r"^0 +0 to 127 +1.23k +0 +1 +(.*)$", text, re.MULTILINE)
    assert "━" in text and row and row[1].startswith("/") == (width > 70)
    shutil.rmtree(folder)

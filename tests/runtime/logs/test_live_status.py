"""``status.json``: it follows the run, survives a resume, and never disturbs either."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from jaxrl.runtime.logs import live_status
from jaxrl.runtime.logs.live_status import LONGEST, LiveStatus, WorkerState, read_status_file
from tests.helpers.live_files import write_status
from tests.helpers.processes.children import soon

WORKER = WorkerState(12.5, math.nan, 2, (0, 3), "LOG")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_status, "PAUSE", 0.01)


def texts(folder: Path) -> list[str]:
    return [message.text for message in read_status_file(folder / "status.json").messages]


def test_it_has_what_the_run_showed(tmp_path: Path) -> None:
    status = LiveStatus(tmp_path)
    status.note("before")
    assert not list(tmp_path.iterdir())
    status.begin()
    assert texts(tmp_path) == ["before"]
    worker = WORKER._replace(log=str(tmp_path / "workers" / "worker-0.log"))
    status.update({}, 50.0, 0.0, [worker])
    status.note("after")
    assert soon(lambda: texts(tmp_path) == ["before", "after"])
    found = read_status_file(tmp_path / "status.json")
    assert found.workers == [WorkerState(12.5, None, 2, [0, 3], "workers/worker-0.log")]  # type: ignore[arg-type]
    assert found.process.pid == os.getpid() and found.end is None
    assert found.eta is not None and 40 < found.eta - found.begun < 60
    status.end("stopped", "by a\nsignal")
    status.end("failed", "later")
    status.close()
    end = read_status_file(tmp_path / "status.json").end
    assert end is not None and end[:2] == ("stopped", "by a signal")
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_process_that_resumes_keeps_the_messages_of_the_one_before(tmp_path: Path) -> None:
    for name in ("first", "second"):
        status = LiveStatus(tmp_path)
        status.note(name)
        status.begin()
        status.end("failed", name)
        status.close()
    assert texts(tmp_path) == ["first", "second"]
    assert read_status_file(tmp_path / "status.json").end == status._end


def test_a_run_without_changes_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_status, "BEAT", 0.05)
    status = LiveStatus(tmp_path)
    status.begin()
    first = read_status_file(tmp_path / "status.json").written
    assert soon(lambda: read_status_file(tmp_path / "status.json").written > first)
    status.close()


def test_messages_are_few_and_short(tmp_path: Path) -> None:
    status = LiveStatus(tmp_path)
    for number in range(60):
        status.note(f"{number} {'x' * 3000} end")
    status.begin()
    status.close()
    kept = texts(tmp_path)
    assert len(kept) == 50 and kept[0].startswith("10 xxx") and kept[-1].endswith("x end")
    assert max(map(len, kept)) <= LONGEST


@pytest.mark.parametrize("loss", ["deleted", "another's", "in the way"])
def test_a_folder_that_is_lost_does_not_disturb_the_run(loss: str, tmp_path: Path) -> None:
    folder, is_ours = tmp_path / "run", [True]
    folder.mkdir()
    status = LiveStatus(folder, lambda: is_ours[0])
    status.begin()
    if loss == "in the way":
        (folder / "status.json").unlink()
        (folder / "status.json").mkdir()
    else:
        shutil.rmtree(folder)
        if loss == "another's":
            folder.mkdir()
            is_ours[0] = False
    status.note("more")
    status.close()
    assert [path.name for path in tmp_path.rglob("*")] == {
        "deleted": [],
        "another's": ["run"],
        "in the way": ["run", "status.json"],
    }[loss]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    for name in ("status.json", "status.json.tmp"):
        (tmp_path / name).symlink_to(target)
    status = LiveStatus(tmp_path)
    status.begin()
    status.close()
    assert target.read_text() == "mine" and not (tmp_path / "status.json").is_symlink()
    assert read_status_file(tmp_path / "status.json").process.pid == os.getpid()


def test_a_run_that_leaves_its_folder_unchanged_deletes_it(tmp_path: Path) -> None:
    status = LiveStatus(tmp_path)
    status.begin()
    status.delete()
    status.close()
    assert not list(tmp_path.iterdir())


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *above, name = path.split(".")
    inner = body
    for key in above:
        inner = inner[key]
    inner[name] = value
    return body


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("process", None),
        ("process", {"pid": 1}),
        ("process.pid", -1),
        ("process.pid", True),
        ("process.started", "x"),
        ("process.host", 3),
        ("written", "now"),
        ("eta", math.inf),
        ("end", {"state": "running", "reason": "", "time": 0}),
        ("workers", [{"steps_per_second": 1, "lag": 0, "restarts": "many"}]),
        ("workers", [{"steps_per_second": 1, "lag": 0, "restarts": 0, "envs": [0]}]),
        ("messages", [{"time": 1, "text": ["x"]}]),
        ("messages", 3),
        ("format", "1"),
    ],
)
def test_a_file_that_cannot_be_is_damaged(path: str, value: Any, tmp_path: Path) -> None:
    file = write_status(tmp_path)
    assert read_status_file(file).messages == []
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    with pytest.raises(ValueError, match=r"^it is damaged$"):
        read_status_file(file)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\x00\xff"])
def test_text_that_is_not_a_status_is_damaged(text: str, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"^it is damaged$"):
        read_status_file(tmp_path / "status.json")


def test_another_version_is_named(tmp_path: Path) -> None:
    file = write_status(tmp_path)
    file.write_text(json.dumps({"format": 2, "jaxrl": "9.0"}))
    with pytest.raises(ValueError, match=r"^jaxrl 9\.0 wrote it in format 2, and jaxrl \S+ reads format 1: use that version$"):
        read_status_file(file)

"""Folders of runs in any state, and calls of ``jaxrl status`` on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.runtime.cli.commands import status as command
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.system.process_identity import this_process
from tests.helpers.live_files import write_status
from tests.helpers.written_runs import write_run

DEAD = this_process()._replace(started=1)
"""Identity of a process that has ended, whose pid another one has."""


def written(folder: Path, chunks: int = 2, **changes: Any) -> Path:
    """Write the folder of a run with the seeds 4 and 2 after some of its five chunks of 100 rows, in two workers."""
    write_run(folder, np.arange(2.0 * chunks).reshape(chunks, 2), seeds=[4, 2], env="Maze-v0")
    config = json.loads((folder / "config.json").read_text())
    config["run"] |= {"total_steps": 500, "iterations": 5, "warmup_iterations": 0}
    (folder / "config.json").write_text(json.dumps(config))
    if chunks == 0:
        (folder / "records.jsonl").unlink()
    write_status(folder, **changes)
    return folder


def shown(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    code = main(["status", str(folder), *flags])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


def as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(shown(folder, capsys, "--json")[1])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def after_each_look(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], Any]) -> None:
    """Make ``watch`` call one of ``changes`` before each look after the first."""
    read, waiting = command.read, [lambda: None, *changes]

    def look(run: str) -> Any:
        waiting.pop(0)()
        return read(run)

    monkeypatch.setattr(command, "read", look)
    monkeypatch.setattr(command, "INTERVAL", 0.0)

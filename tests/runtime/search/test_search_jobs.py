"""Searches in several processes."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jaxrl.runtime.search.lanes.remote_lanes import Jobs, open_remote_lanes
from jaxrl.runtime.search.log import MANIFEST
from jaxrl.runtime.search.progress import SearchProgress
from jaxrl.runtime.search.search import search
from jaxrl.runtime.search.search_file import read_search
from jaxrl.runtime.search.session import SearchSession
from tests.helpers.searches import SEARCH, open_session, with_options


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

"""``FolderStatus``: the runs, sweeps and searches below a folder, and the state of any folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxrl.runtime.logs.read_runs import outermost
from jaxrl.runtime.logs.run_folder import CONFIG
from jaxrl.runtime.search.log import MANIFEST as SEARCH
from jaxrl.runtime.search.sweep import MANIFEST as SWEEP
from jaxrl.runtime.status.run_status import RunStatus, read_run_status
from jaxrl.runtime.status.search_status import SearchStatus, read_search_status
from jaxrl.runtime.status.sweep_status import SweepStatus, read_sweep_status

MARKS = {CONFIG, SWEEP, SEARCH}
"""Files, one of them in each folder of a run, a sweep or a search."""

OneStatus = RunStatus | SweepStatus | SearchStatus


@dataclass(frozen=True, kw_only=True)
class FolderStatus:
    """State of all runs below a folder. The fields are the keys of ``jaxrl status --json``."""

    kind: str = "folder"
    folder: str
    runs: list[OneStatus]
    """Runs, sweeps and searches, sorted by path. Those inside a sweep or a search are not listed again."""
    problems: list[str] = field(default_factory=list)
    """Folders that could not be read, and why."""

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"runs": [each.as_json() for each in self.runs]}


AnyStatus = OneStatus | FolderStatus


def read_status(folder: Path, shown: str, now: float) -> AnyStatus:
    """Read the state of a run, a sweep or a search, or else those of all below a folder; arguments as for ``read_run_status``.

    Raises:
      FileNotFoundError: there is none.
      OSError, ValueError: a run, sweep or search that the folder itself holds cannot be read.
    """
    is_one = any(os.path.lexists(folder / name) for name in MARKS)
    if not is_one and (inside := [*outermost(folder, lambda files: not MARKS.isdisjoint(files))]):
        return _read_all(folder, inside, shown, now)
    return _read_one(folder, shown, now)


def _read_one(folder: Path, shown: str, now: float) -> OneStatus:
    if (folder / SWEEP).exists():
        return read_sweep_status(folder, shown, now)
    if (folder / SEARCH).exists():
        return read_search_status(folder, shown, now)
    return read_run_status(folder, shown, now)


def _read_all(top: Path, folders: list[Path], shown: str, now: float) -> FolderStatus:
    runs: list[OneStatus] = []
    problems: list[str] = []
    for path in folders:
        try:
            runs.append(_read_one(path, os.path.join(shown, path.relative_to(top)), now))
        except (OSError, ValueError) as error:
            problems.append(str(error))
    return FolderStatus(folder=shown, runs=runs, problems=problems)

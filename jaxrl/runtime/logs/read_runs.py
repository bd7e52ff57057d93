"""Reading of runs from disk: folders, settings and records."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.runtime.logs.files import read_records
from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN, as_arrays
from jaxrl.runtime.logs.run_folder import CONFIG, RECORDS, read_config
from jaxrl.runtime.system.disk import at_home
from jaxrl.settings.aliases import unknown


class Run(NamedTuple):
    """A run, read from its folder."""

    folder: Path
    config: dict[str, Any]
    history: dict[str, np.ndarray]
    """As returned by ``jaxrl.run``: log key -> [num_chunks] or [num_chunks, num_seeds]."""

    @property
    def seeds(self) -> list[int]:
        return self.config["run"]["seeds"]

    @property
    def keys(self) -> list[str]:
        """Log keys with a value per seed."""
        return sorted(key for key, values in self.history.items() if values.ndim == 2 and key != "env_steps")

    def has(self, key: str) -> bool:
        return key in self.history and not np.isnan(self.history[key]).all()


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the folder itself if it is a run folder, else all run folders below it, sorted by name and number.

    If there are none, FileNotFoundError is raised.
    """
    top = at_home(folder)
    shown = os.fspath(folder)
    if not top.is_dir():
        reason = "it is a file" if top.exists() else "there is no such folder"
        raise FileNotFoundError(f"{shown!r} is not a folder of one or more runs: {reason}")
    if found := [*outermost(top, lambda files: {CONFIG, RECORDS} <= files)]:
        return found
    if (top / CONFIG).exists():
        return [top]
    raise FileNotFoundError(f"{shown!r} holds no run: neither it nor a folder below it has both {CONFIG} and {RECORDS}")


def outermost(top: Path, is_wanted: Callable[[set[str]], bool]) -> Iterator[Path]:
    """Yield the folders at or below ``top`` whose names of files are wanted, sorted by name and number; none inside another."""
    for path, folders, files in os.walk(top):
        folders.sort(key=_natural)
        if is_wanted({*files}):
            yield Path(path)
            folders.clear()


def _natural(name: str) -> list[str | float]:
    """Return a sort key by the numbers in a name: ``lr=0.0003,envs=8`` < ``lr=0.0003,envs=16`` < ``lr=0.001,envs=8``."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", name)  # alternating text and numbers
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]


def read_run(folder: Path) -> Run:
    """Read the run in a folder; its history is empty if it has no records yet."""
    config = read_config(folder)
    records = read_records(folder, sys.maxsize, len(config["run"]["seeds"]))
    return Run(folder, config, {key: np.asarray(values, np.float64) for key, values in as_arrays(records).items()})


def read_runs(folders: Sequence[str | os.PathLike[str]], note: Callable[[str], None] = lambda text: None) -> list[Run]:
    """Read the runs in these folders, each once.

    A run without records, which has only just started, is skipped with a note; ValueError is raised if its folder itself is
    named, or if none of the runs has records.
    """
    runs: dict[Path, Run] = {}
    waiting = []
    for folder in folders:
        for path in find_runs(folder):
            if path.resolve() in runs:
                continue
            if (run := read_run(path)).history:
                runs[path.resolve()] = run
                continue
            waiting.append(path)
            if path == at_home(folder):
                raise ValueError(f"{os.fspath(path)!r} has no records yet: wait for the first chunk of that run, or leave it out")
    if not runs:
        raise ValueError(f"none of the {len(waiting)} runs has records yet: wait for their first chunks")
    if waiting:
        note(f"no records yet in {', '.join(map(str, waiting))}")
    return list(runs.values())


def choose_key(runs: Sequence[Run], key: str | None, note: Callable[[str], None] = lambda text: None) -> str:
    """Return the log key to draw, which all runs must have; by default evaluation returns if all have them, else training's."""
    if key is None:
        missing = [run.folder for run in runs if not run.has(EVALUATION_RETURN)]
        key = TRAINING_RETURN if missing else EVALUATION_RETURN
        if 0 < len(missing) < len(runs):
            note(f"no evaluation yet in {missing[0]}: showing the return of training episodes")
    if key not in (names := sorted({name for run in runs for name in run.keys})):
        raise unknown("log key", key, names)
    for run in runs:
        if not run.has(key):
            known_keys = ", ".join(name for name in run.keys if run.has(name))
            raise ValueError(
                f"{os.fspath(run.folder)!r} has no values of {key!r}: omit this run, or draw a key that it has ({known_keys})"
            )
    return key

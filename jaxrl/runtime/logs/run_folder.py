"""The folder of a run: who may write to it, what it was asked for, and whether it can go on."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from jaxrl.runtime.logs.provenance import commit, hardware, installed_versions
from jaxrl.runtime.logs.schema import check_config
from jaxrl.runtime.system.disk import (
    absolute,
    move_to_free_name,
    parse_json,
    read_regular,
    savable,
    temporary,
    without_links,
    write_atomically,
)

CONFIG, PROGRESS, RECORDS, CURVE = "config.json", "progress.csv", "records.jsonl", "learning_curve.png"
CHECKPOINTS, BEST, TENSORBOARD, WORKERS = "checkpoints", "best", "tensorboard", "workers"
LOCK = ".lock"


class RunFolder:
    """A run's folder, claimed by this process until ``close``; another that tries to write to it meanwhile is refused."""

    def __init__(self, out: str | os.PathLike[str]) -> None:
        """Make and claim the folder.

        Raises:
          ValueError: its path has a character with which checkpoints are lost.
          FileExistsError: it holds something that is no run, or another process is writing to it.
          OSError: it cannot be made or written to.
        """
        self.path = savable(out, "out")
        self._shown = os.fspath(out)
        self._made = [path for path in (self.path, *self.path.parents) if not os.path.lexists(path)]
        try:
            self._lock = self._claim()
        except BaseException:
            self._remove_empty()
            raise
        self.config: dict[str, Any] | None = None
        """Of the run that is in there; None in a new folder."""
        try:
            self.config = read_config(self.path) if (self.path / CONFIG).exists() else None
        except BaseException:
            self.close()
            raise
        self.id: str | None = os.urandom(6).hex() if self.config is None else self.config.get("id")
        """Stands in each checkpoint of the run, and in none of another one; None for a run of a time before there were ids."""

    @property
    def shown(self) -> Path:
        """Relative to the current folder, if it is in there."""
        with contextlib.suppress(OSError, ValueError):  # the current folder was deleted, or is another one
            return self.path.relative_to(Path.cwd())
        return self.path

    def check_same(self, spec: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Refuse, by a FileExistsError that names the first difference, to go on with a run that was asked for otherwise.

        The length that the agent was built for is none: a run has its own.
        """
        assert self.config is not None
        there, here = what_counts(self.config["agent"], plain(spec))
        if difference := first_difference({"agent": there, "run": self.config["run"]}, {"agent": here, "run": plain(request)}):
            raise FileExistsError(
                f"out={self._shown!r} holds another run: {difference} here. Name another folder, or ask for the same again "
                "to resume that run; init_from=… starts a new run from its parameters"
            )

    def write_config(self, devices: Sequence[jax.Device], devices_per_seed: int = 1, **parts: Mapping[str, Any] | None) -> None:
        """``config.json``: all that it takes to make the run again."""
        config = {
            **({"id": self.id} if self.id else {}),
            **plain(parts),
            "versions": installed_versions(),
            "commit": commit(),
            "hardware": hardware(devices) | {"devices_per_seed": devices_per_seed},
        }
        write_atomically(self.path / CONFIG, json.dumps(config, indent=2) + "\n")
        self.config = config

    def delete_config(self) -> None:
        """Of a run that came to nothing: the folder is then as if it had never been."""
        if self.is_there:
            with contextlib.suppress(OSError):
                (self.path / CONFIG).unlink()

    def check_there(self) -> None:
        """Refuse, by a FileNotFoundError, to go on where the folder is not the one that was claimed: no parts are made anew."""
        if not self.is_there:
            raise FileNotFoundError(
                f"out={self._shown!r} was deleted, moved or replaced while the run was going on: it ends here, and nothing more "
                "is written. If the folder was moved, the same call with its new name resumes the run"
            )

    @property
    def is_there(self) -> bool:
        """Whether its path still leads to the folder that was claimed."""
        return _is_at(self._lock, self.path / LOCK)

    def close(self) -> None:
        if self.is_there and not os.fstat(self._lock.fileno()).st_size:  # ours is empty; what is not was there before
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
        self._lock.close()  # which gives the claim up
        self._remove_empty()

    def _remove_empty(self) -> None:
        """The folders that this has made, if nothing came into them."""
        with contextlib.suppress(OSError):
            for made in self._made:
                made.rmdir()

    def _claim(self) -> TextIO:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            found = contents(self.path, CONFIG)
            if found and CONFIG not in found:
                raise FileExistsError(
                    f"out={self._shown!r} is not empty, and holds no run (there is no {CONFIG}): name another folder"
                )
            lock = open(self.path / LOCK, "a", encoding="utf-8", opener=without_links)  # noqa: SIM115 - held until close()
        except OSError as error:
            if error.strerror is None:
                raise
            in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
            reason = "it, or a folder above it, is a file" if in_the_way else error.strerror
            raise OSError(f"out={self._shown!r} cannot be written to: {reason}. Name a folder that can") from None
        if not (_lock_file(lock) and _is_at(lock, self.path / LOCK)):
            lock.close()
            raise FileExistsError(f"out={self._shown!r}: another process is running there. Wait for it, or name another folder")
        return lock


class GuestFolder(RunFolder):
    """A run's folder as the processes of a group see it that write nothing there but their shards of checkpoints: the first of
    them has claimed it. What it knows, these are told."""

    def __init__(self, out: str | os.PathLike[str], config: dict[str, Any] | None, run: str | None) -> None:
        self.path, self._shown = savable(out, "out"), os.fspath(out)
        self.config, self.id = config, run

    @property
    def is_there(self) -> bool:
        return True

    def close(self) -> None:
        pass


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """``config.json`` of a run's folder.

    Raises:
      FileNotFoundError: there is no such folder, or no run in it.
      ValueError: the file is not what a run writes.
    """
    path = absolute(folder) / CONFIG
    try:
        config = parse_json(read_regular(path))
    except (FileNotFoundError, NotADirectoryError):
        absent = "it is a file" if path.parent.exists() else "there is no such folder"
        what = f"it has no {CONFIG}" if path.parent.is_dir() else absent
        raise FileNotFoundError(f"{os.fspath(folder)!r} is not the folder of a run: {what}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): put it back from a copy") from None
    try:
        check_config(config)
    except ValueError as error:
        raise ValueError(f"{path} is not what a run writes: {error}. Put it back from a copy") from None
    config["run"].setdefault("eval_explore", False)  # older runs knew greedy evaluations only
    return config


def _lock_file(file: TextIO) -> bool:
    with contextlib.suppress(ImportError, OSError):  # without locks, two runs in one folder are the user's to avoid
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether an open file is still the one at ``path``: another run may have ended, and deleted it, after it was opened."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def what_counts(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two specs of an agent without ``total_steps`` and the settings that have no effect here, which older versions stored."""
    skipped = {"total_steps", *(name for name, value in here.get("settings", {}).items() if value is None)}

    def kept(spec: Mapping[str, Any]) -> dict[str, Any]:
        return {**spec, "settings": {name: x for name, x in spec.get("settings", {}).items() if name not in skipped}}

    return kept(there), kept(here)


def first_difference(before: Any, now: Any, path: str = "") -> str | None:
    """``"agent.settings.learning_rate is 0.001 there and 0.002"``, or None when both say the same.

    What cannot be imported cannot be compared either, and passes.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        if "unimportable" in before and "unimportable" in now:
            return None
        for key in dict.fromkeys([*before, *now]):
            where = f"{path}.{key}" if path else str(key)
            if difference := first_difference(before.get(key), now.get(key), where):
                return difference
        return None
    return None if before == now else f"{path} is {json.dumps(before)} there and {json.dumps(now)}"


def contents(folder: Path, first: str) -> list[str]:
    """The names in a folder, without what a process leaves that is killed before it has written its ``first`` file."""
    leftover = temporary(folder / first)
    return sorted(
        path.name for path in folder.iterdir() if path.name not in (LOCK, WORKERS) and (path != leftover or path.is_dir())
    )


def set_aside(path: Path) -> Path:
    """Rename what a run would overwrite to a name that is free: ``best`` to ``best.before``, then ``best.before-2``."""
    return move_to_free_name(path, f"{path.stem}.before", path.suffix)


def plain(data: Any) -> Any:
    """``data`` as JSON holds it: NumPy and JAX numbers become Python's, and tuples lists."""
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, np.generic | np.ndarray | jax.Array):
        return np.asarray(data).tolist()
    return data


def without_nan(data: Any) -> Any:
    """Plain data with None for each number that is not finite, which JSON does not have."""
    if isinstance(data, Mapping):
        return {key: without_nan(value) for key, value in data.items()}
    if isinstance(data, list):
        return [without_nan(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data

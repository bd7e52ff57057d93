"""Run folders: exclusive access, configuration, and checks before a resume."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from jaxrl.builder.old_specs import converted
from jaxrl.runtime.logs.provenance import commit, hardware, installed_versions
from jaxrl.runtime.logs.schema import check_config
from jaxrl.runtime.system.disk import (
    absolute,
    lock_file,
    move_to_free_name,
    parse_json,
    read_regular,
    savable,
    temporary,
    without_links,
    write_atomically,
)

if TYPE_CHECKING:  # run folders are read without JAX
    import jax

CONFIG, PROGRESS, RECORDS, CURVE = "config.json", "progress.csv", "records.jsonl", "learning_curve.png"
CHECKPOINTS, BEST, TENSORBOARD, WORKERS = "checkpoints", "best", "tensorboard", "workers"
LOCK, STATUS = ".lock", "status.json"

MAX_CONFIG_BYTES = 2**28
"""Largest ``config.json`` that is read; a run of a million seeds has one of some MiB."""


class RunFolder:
    """A run folder, locked by this process until ``close``; other processes cannot write to it until then."""

    def __init__(self, out: str | os.PathLike[str]) -> None:
        """Create and lock the folder.

        Raises:
          ValueError: its path has a character that checkpoints do not support.
          FileExistsError: it holds something that is not a run, or another process is writing to it.
          OSError: it cannot be created or written to.
        """
        self.path = savable(out, "out")
        self._shown = os.fspath(out)
        self._created = [path for path in (self.path, *self.path.parents) if not os.path.lexists(path)]
        self.config: dict[str, Any] | None = None
        """Configuration of the run in the folder; None in a new folder."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove_empty)
            self._lock = self._claim()
            undo.callback(self.close)
            if (self.path / CONFIG).exists():
                self.config = read_config(self.path)
            undo.pop_all()
        self.id: str | None = os.urandom(6).hex() if self.config is None else self.config.get("id")
        """Unique id, stored in each checkpoint of the run; None for a run of an older version without ids."""

    @property
    def shown(self) -> Path:
        """Path for display, relative to the current folder if it is inside."""
        with contextlib.suppress(OSError, ValueError):  # the current folder was deleted, or does not contain it
            return self.path.relative_to(Path.cwd())
        return self.path

    def check_same(self, spec: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Raise FileExistsError, with the first difference, if the run in the folder has another agent or other arguments.

        The ``total_steps`` that the agent was built for are not compared, since the run has its own.
        """
        assert self.config is not None
        there, here = what_counts(self.config["agent"], plain(spec))
        runs = [_without_patience(run) for run in (self.config["run"], plain(request))]
        if difference := first_difference({"agent": there, "run": runs[0]}, {"agent": here, "run": runs[1]}):
            raise FileExistsError(
                f"out={self._shown!r} holds another run: {difference} here. Name another folder, or pass the same arguments "
                "to resume that run; init_from=… starts a new run from its parameters"
            )

    def write_config(self, devices: Sequence[jax.Device], devices_per_seed: int = 1, **parts: Mapping[str, Any] | None) -> None:
        """Write ``config.json``, which has everything needed to repeat the run."""
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
        """Delete ``config.json`` of a run that failed to start, so that the folder can be used again."""
        if self.is_there:
            with contextlib.suppress(OSError):
                (self.path / CONFIG).unlink()

    def check_there(self) -> None:
        """Raise FileNotFoundError if the folder is no longer the one that was locked: parts of it must not be created again."""
        if not self.is_there:
            raise FileNotFoundError(
                f"out={self._shown!r} was deleted, moved or replaced during the run: the run ends, and nothing more is written. "
                "If the folder was moved, the same call with its new name resumes the run"
            )

    @property
    def is_there(self) -> bool:
        """True if the path still leads to the folder that was locked."""
        return _is_at(self._lock, self.path / LOCK)

    def close(self) -> None:
        if self.is_there and not os.fstat(self._lock.fileno()).st_size:  # the lock file is empty; any other file existed before
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
        self._lock.close()  # releases the lock
        self._remove_empty()

    def _remove_empty(self) -> None:
        """Remove the folders created by this object that are still empty."""
        with contextlib.suppress(OSError):
            for folder in self._created:
                folder.rmdir()

    def _claim(self) -> TextIO:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            found = contents(self.path, CONFIG)
            if found and CONFIG not in found:
                raise FileExistsError(
                    f"out={self._shown!r} is not empty and holds no run (there is no {CONFIG}): name another folder"
                )
            lock = open(self.path / LOCK, "a", encoding="utf-8", opener=without_links)  # noqa: SIM115 - held until close()
        except OSError as error:
            if error.strerror is None:
                raise
            in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
            reason = "it, or a folder above it, is a file, or a link to nothing" if in_the_way else error.strerror
            raise OSError(f"out={self._shown!r} cannot be written to: {reason}. Name a writable folder") from None
        if not (lock_file(lock) and _is_at(lock, self.path / LOCK)):
            lock.close()
            raise FileExistsError(f"out={self._shown!r} is in use by another process. Wait until it ends, or name another folder")
        return lock


class GuestFolder(RunFolder):
    """The run folder as used by all processes of a group but the first, which has locked it and passes on its configuration.

    These processes only write their shards of checkpoints there.
    """

    def __init__(self, out: str | os.PathLike[str], config: dict[str, Any] | None, run: str | None) -> None:
        self.path, self._shown = savable(out, "out"), os.fspath(out)
        self.config, self.id = config, run

    @property
    def is_there(self) -> bool:
        return True

    def close(self) -> None:
        pass


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read ``config.json`` of a run folder. Raise FileNotFoundError if there is no run, or ValueError if the file is invalid."""
    path = absolute(folder) / CONFIG
    try:
        config = parse_json(read_regular(path, MAX_CONFIG_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        absent = "it is a file" if path.parent.exists() else "there is no such folder"
        reason = f"it has no {CONFIG}" if path.parent.is_dir() else absent
        raise FileNotFoundError(f"{os.fspath(folder)!r} is not a run folder: {reason}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): restore it from a copy") from None
    try:
        check_config(config)
    except ValueError as error:
        raise ValueError(f"{path} is invalid: {error}. Restore it from a copy") from None
    config["run"].setdefault("eval_explore", False)  # older runs only had greedy evaluations
    return config


def damaged(folder: str, name: str) -> ValueError:
    """Return the error for a file of a run, sweep or search that cannot be read."""
    return ValueError(f"{folder!r} cannot be read: its {name} is damaged. Restore it from a copy")


def changed_hyperparams(config: Mapping[str, Any], member: int) -> dict[str, Any]:
    """Return the hyperparameters that a run changed for one of its members."""
    changed = config["run"].get("hyperparams") or {}
    return {name: values[member] if isinstance(values, list) else values for name, values in changed.items()}


def learns_offline(config: Mapping[str, Any]) -> bool:
    """Return whether a run learns from a dataset alone. Its steps are then updates."""
    agent = config["agent"]
    return "data" in agent.get("parts", {}) and not agent.get("settings", {}).get("online")


def _is_at(file: TextIO, path: Path) -> bool:
    """Return whether an open file is still the one at ``path``: another run may have ended and deleted it in the meantime."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def what_counts(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two specs of an agent without ``total_steps`` and settings without effect, which older versions stored. Of a dataset
    the digest of its rows counts, not the file that holds them."""
    skipped = {"total_steps", *(name for name, value in here.get("settings", {}).items() if value is None)}

    def kept(spec: Mapping[str, Any]) -> dict[str, Any]:
        spec = converted(spec)
        parts = spec.get("parts", {})
        if isinstance(described := (parts.get("data") or {}).get("dataset"), Mapping):
            spec = {**spec, "parts": {**parts, "data": described.get("digest")}}
        return {**spec, "settings": {name: x for name, x in spec.get("settings", {}).items() if name not in skipped}}

    return kept(there), kept(here)


PATIENCE = {"max_restarts", "timeout", "pin"}
"""Settings of a scheme that do not change what workers collect. A run that ended because of one is resumed with another value."""


def _without_patience(run: Mapping[str, Any]) -> dict[str, Any]:
    scheme = run.get("scheme")
    kept = {name: value for name, value in scheme.items() if name not in PATIENCE} if isinstance(scheme, Mapping) else scheme
    return {**run, "scheme": kept} if "scheme" in run else {**run}


def recorded_request(out: str | os.PathLike[str]) -> Mapping[str, Any] | None:
    """Return what was asked of the run in a folder; None if there is none, or it cannot be read, which ``RunFolder`` reports."""
    try:
        return read_config(out)["run"]
    except (OSError, ValueError):
        return None


def first_difference(recorded: Any, requested: Any, path: str = "") -> str | None:
    """Describe the first difference: ``"agent.settings.learning_rate is 0.001 there and 0.002"``; None if there is none.

    Parts that cannot be imported cannot be compared, and count as equal.
    """
    if isinstance(recorded, Mapping) and isinstance(requested, Mapping):
        if "unimportable" in recorded and "unimportable" in requested:
            return None
        for key in dict.fromkeys([*recorded, *requested]):
            where = f"{path}.{key}" if path else str(key)
            if difference := first_difference(recorded.get(key), requested.get(key), where):
                return difference
        return None
    return None if recorded == requested else f"{path} is {json.dumps(recorded)} there and {json.dumps(requested)}"


def contents(folder: Path, first: str) -> list[str]:
    """List the names in a folder, without leftovers of a process that was killed before it had written its ``first`` file."""
    leftover = temporary(folder / first)
    return sorted(
        path.name for path in folder.iterdir() if path.name not in (LOCK, WORKERS) and (path != leftover or path.is_dir())
    )


def resume_command(folder: str, packages: Iterable[str]) -> str:
    """Return the command that resumes a run, and trusts these packages."""
    return shlex.join(["jaxrl", "train", "--resume", folder, *(word for name in packages for word in ("--trust", name))])


def set_aside(path: Path) -> Path:
    """Rename a file or folder that a run would overwrite to a free name: ``best`` to ``best.before``, then ``best.before-2``."""
    return move_to_free_name(path, f"{path.stem}.before", path.suffix)


def plain(data: Any) -> Any:
    """Convert data to JSON types: NumPy and JAX arrays become Python numbers and lists, and tuples become lists."""
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if hasattr(type(data), "__array__"):
        return np.asarray(data).tolist()
    return data


def without_nan(data: Any) -> Any:
    """Replace numbers in plain data that are not finite, which JSON does not support, with None."""
    if isinstance(data, Mapping):
        return {key: without_nan(value) for key, value in data.items()}
    if isinstance(data, list):
        return [without_nan(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data

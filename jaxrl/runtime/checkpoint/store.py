"""Saving of checkpoints through orbax, such that a kill at any moment loses no completed step.

``folder/`` holds one folder per step, as orbax writes it, with a ``manifest.json`` next to orbax's files. A step is written in
``folder/unfinished`` (each save in a separate folder there) and moved into place once everything is on disk. Every step in place
is therefore complete. If it is altered later, the digests in its manifest no longer match; ``restore`` then warns and uses the
step before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl.runtime.checkpoint import leaves, manifest
from jaxrl.runtime.checkpoint.manifest import UNFINISHED, CheckpointError, CheckpointWarning, Damage, step_folders
from jaxrl.runtime.checkpoint.ownership import Workspace, check_unfinished, is_own, own_steps
from jaxrl.runtime.checkpoint.silence_orbax import Quiet
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.system.disk import move_damaged, savable, sync_folder
from jaxrl.runtime.system.warn import warn
from jaxrl.settings.validation import check_count
from jaxrl.types import PyTree

ONE_AT_A_TIME = threading.Lock()
"""Held while a thread saves. orbax tells the parts of a save by a number that all threads share: with two saves at once, one may
write into folders that are not there yet."""


def save(
    folder: str | os.PathLike[str], state: PyTree, step: int, *, spec: Any = None, keep: int = 3, run: str | None = None
) -> Path:
    """Save a state as ``folder/<step>`` and delete all but the last ``keep`` steps of this run.

    All other contents of the folder are left unchanged, including steps of other runs.

    Args:
      folder: created if it does not exist. One process at a time may write to it; others may read at the same time. Threads save
        one after the other. The processes of a group (see ``jaxrl.parallel.initialize``) save together, each its shards, in a
        shared folder.
      state: any pytree of arrays (NumPy arrays, or JAX arrays on one device or sharded over several) and typed PRNG keys.
      step: at least 0, and above every intact step in the folder. Steps from here on that are not intact are set aside as
        ``<step>.damaged``, if their manifests name ``run``.
      spec: plain JSON data to store with it, such as ``agent.spec``.
      keep: number of steps to keep, at least 1.
      run: id of the saving run, which distinguishes its steps from those of other runs; None is an id like any other.

    Returns:
      The folder of the step.

    Raises:
      TypeError: a leaf of the state is not an array, or ``spec`` is not plain JSON; the message names it.
      ValueError: ``step`` or ``keep`` is not allowed, or the path of the folder has one of the characters ``[ ] * ? \\``.
      OSError: the folder cannot be written to.
      CheckpointError: writing failed, for example on a full disk, or something that does not belong to this run occupies the path
        of the step. Earlier steps are untouched.
    """
    with ONE_AT_A_TIME:
        pending = PendingSave(folder, state, step, spec=spec, keep=keep, run=run)
        return Path(current().together(lambda: str(pending.finish()))[0])


class PendingSave:
    """A save in progress. orbax continues to write in the background; nothing counts as saved before ``finish`` returns."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        state: PyTree,
        step: int,
        *,
        spec: Any = None,
        keep: int = 3,
        run: str | None = None,
        request: Any = None,
        check: Callable[[], None] = lambda: None,
        owned: bool = False,
    ) -> None:
        """Check everything and pass the state to orbax. The next save in this folder must not begin before ``finish`` returns.

        Args:
          owned: the entire folder belongs to the run, so anything in the way of a step is renamed. Otherwise only what belongs to
            the run is renamed; see ``ownership``.
          request: arguments of the run, as plain JSON data.
          check: called before anything in the folder is changed, moved or deleted. If it raises, for example because the folder
            now belongs to another run, the save ends there.
        """
        import orbax.checkpoint as ocp

        self._step, self._keep = check_count("step", step, at_least=0), check_count("keep", keep)
        self._about = {"spec": _plain("spec", spec), "run": run, "request": _plain("request", request)}
        self._about["structure"], arrays = leaves.encode(state)
        self._folder, self._check, self._is_first = savable(folder), check, current().is_first

        self._workspace: Workspace | None = None
        """Created by the first process; the others write into the same folder."""

        def make_room() -> str:
            check()
            check_unfinished(self._folder)
            _make_way(self._folder, self._step, run, owned)
            self._workspace = _open_for_writing(self._folder, run)
            return self._workspace.path.name

        self._unfinished = self._folder / UNFINISHED / current().of_first(make_room)
        self._quiet = contextlib.ExitStack()
        self._quiet.enter_context(Quiet())
        try:
            options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
            self._manager = ocp.CheckpointManager(self._unfinished, options=options)
            if not self._manager.save(self._step, args=ocp.args.StandardSave(arrays), force=True):
                raise RuntimeError("orbax-checkpoint refused to save it")
        except Exception as error:
            raise self._give_up(error) from error

    def finish(self) -> Path:
        """Wait for orbax, write the manifest, move the step into place, and delete old steps."""
        folder, place = self._folder, self._folder / str(self._step)
        try:
            self._manager.wait_until_finished()
            if not self._is_first:  # only the first process moves and deletes
                self._manager.close()
                self._quiet.close()
                return place
            self._check()
            manifest.write(self._unfinished / place.name, self._step, **self._about)
            os.replace(self._unfinished / place.name, place)
            sync_folder(folder)
        except Exception as error:  # errors of orbax's threads surface here, as exceptions of any type
            raise self._give_up(error) from error
        self._manager.close()
        self._quiet.close()
        self._check()
        for old in own_steps(folder, self._about["run"])[: -self._keep]:
            os.replace(folder / str(old), self._unfinished / f"{old}.old")  # atomically: no reader sees it half deleted
        assert self._workspace is not None
        self._workspace.remove()
        return place

    def _give_up(self, error: Exception) -> CheckpointError:
        """Delete what was written, so that it does not fill the disk, and return the error to raise."""
        # orbax's threads may still be running, so its output stays suppressed.
        with contextlib.suppress(Exception):  # closing reports the same failure again, and there may be nothing to close
            self._manager.close()
        if self._workspace is not None:
            for _ in range(20):  # threads that are still writing may add files to a folder that is being deleted
                self._workspace.remove()
                if not os.path.lexists(self._workspace.path):
                    break
                time.sleep(0.05)
        self._check()
        reason = " ".join(str(error).split()) or type(error).__name__
        if len(reason) > 300:
            reason = f"{reason[:140]} ... {reason[-140:]}"  # orbax nests its messages: the symptom first, the cause last
        return CheckpointError(f"saving step {self._step} in {self._folder} failed: {reason}. The steps before it are untouched.")


def _plain(name: str, data: Any) -> Any:
    try:
        return json.loads(json.dumps(data))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be plain JSON data (dicts, lists, strings, numbers, booleans, None): {error}") from None


def _open_for_writing(folder: Path, run: str | None) -> Workspace:
    """Create the folder and a workspace in it, which also checks that the folder can be written to."""
    try:
        return Workspace(folder, run)
    except OSError as error:
        if error.strerror is None:  # raised here, with an explanation
            raise
        reason = "it is a file" if os.path.isfile(folder) else error.strerror
        raise OSError(
            error.errno, f"cannot save checkpoints in folder={str(folder)!r}: {reason}. Give a folder that can be written to"
        ) from None


def _make_way(folder: Path, step: int, run: str | None, owned: bool) -> None:
    """Set aside this run's steps from ``step`` on that are not intact; in a folder that is ``owned``, set aside anything there.
    Raise CheckpointError if there is an intact step, or something that is not the run's."""
    place = folder / str(step)
    if os.path.lexists(place) and not place.is_dir():
        _set_aside(place, step, "is not a folder", owned)
    for found, path in step_folders(folder):
        if found < step:
            break
        try:
            manifest.read_whole(path, found, run if owned else None)
        except Damage as damage:
            if owned or is_own(path, found, run) or path == place:
                _set_aside(path, found, str(damage), owned or is_own(path, found, run))
        else:
            raise CheckpointError(
                f"step={step} cannot be saved in {folder}, which holds step {found}: steps must increase. Save to another folder,"
                f" or move {path} away to continue from an earlier step."
            )


def _set_aside(path: Path, step: int, problem: str, is_ours: bool) -> None:
    if not is_ours:
        raise CheckpointError(
            f"step={step} cannot be saved in {path.parent}: {path.name} exists, {problem}, and is not known to have been saved by"
            " this run. Move it away, or save to another folder."
        )
    aside = move_damaged(path)
    warn(f"step {step} ({path}) {problem}. It was set aside as {aside.name}", CheckpointWarning)
